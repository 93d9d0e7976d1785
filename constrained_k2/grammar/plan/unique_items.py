"""Plans ``uniqueItems`` for items with too many values to list: they are compared while decoding.

``{"type": "array", "items": {"type": ["string", "integer"]}, "uniqueItems": true}``: after ``[1,"a",`` neither ``1``
nor ``"a"`` may repeat (:mod:`constrained_k2.engines.llguidance.uniqueness`). Strings are compared as values, numbers as
texts, so each number has one spelling. If items may be objects or arrays, ``uniqueItems`` is relaxed.
"""

from collections.abc import Iterable
from dataclasses import replace

from constrained_k2.grammar.plan.leaves import is_endless, is_text
from constrained_k2.grammar.plan.nodes import Wider
from constrained_k2.grammar.plan.open_keys import ends_freely
from constrained_k2.grammar.plan.planning import Planning
from constrained_k2.schema.shapes import Array, ListedValue, Node, Number, Object, Shape, String

_KEYWORD = ("uniqueItems",)
_MAY_REPEAT = "an item may repeat once every allowed item with the same prefix has been used"
_NO_EXPONENT = "numbers are written without an exponent, and without zeros at the end of a fraction"


def compared_items(planning: Planning, shape: Array) -> tuple[Node, bytes] | Wider:
    """Return the node of an array's items as a matcher compares them, and the first bytes that identify an item.

    A wider shape if the items are not compared.
    """
    wider = replace(shape, unique=False)
    if shape.prefix or shape.contains:
        return Wider(wider, _KEYWORD, "uniqueItems combined with prefixItems or contains")
    shapes = [one for one in planning.productivity.shapes(shape.rest) if planning.productivity.has_value(one)]
    if any(map(_is_container, shapes)):
        return Wider(wider, _KEYWORD, "items that are objects or arrays are not compared")
    if not _never_run_out(shapes):
        planning.note(_KEYWORD, "relaxed", _MAY_REPEAT)
    numbers = [one for one in shapes if isinstance(one, Number)]
    if not all(one.integer or one.multiple for one in numbers):
        planning.note(_KEYWORD, "narrowed", _NO_EXPONENT)
    item = shape.rest
    if numbers:
        once = (replace(one, once=True) if isinstance(one, Number) else one for one in shapes)
        item = planning.normalizer.part_of(shape.rest, "each number once", tuple(once))
        planning.productivity.analyze(item)
    return item, b"ntf0" if all(one.integer for one in numbers) else b"ntf"


def _is_container(shape: Shape) -> bool:
    return isinstance(shape.value if isinstance(shape, ListedValue) else shape, (Object, Array, dict, list))


def _never_run_out(shapes: Iterable[Shape]) -> bool:
    """Return True if each prefix of a string or number has infinitely many completions.

    A number ends after 40 digits, and only a number with so many digits may repeat. Null and Booleans need no other
    completions: once written, their first byte is forbidden.
    """
    strings = [one for one in shapes if isinstance(one, String)]
    values = [one for one in shapes if isinstance(one, ListedValue)]
    if not all(map(_has_no_end, (one for one in shapes if isinstance(one, Number)))) or not all(map(is_text, values)):
        return False
    return any(map(is_endless, strings)) or (not values and all(map(_goes_on, strings)))


def _goes_on(shape: String) -> bool:
    is_one_pattern = len(shape.patterns) == 1 and shape == String(shortest=shape.shortest, patterns=shape.patterns)
    return is_one_pattern and all(map(ends_freely, shape.patterns))


def _has_no_end(shape: Number) -> bool:
    """Return True if further digits keep a number within its bounds."""
    is_above = shape.high is None and (shape.low is None or shape.low >= 0)
    is_below = shape.low is None and (shape.high is None or shape.high <= 0)
    return (is_above or is_below) and not (shape.multiple or shape.fraction)
