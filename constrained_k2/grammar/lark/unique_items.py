"""Arrays of unequal items, unless these are few values: a matcher keeps the items that are written.

``{"type": "array", "items": {"type": ["string", "integer"]}, "uniqueItems": true}``: after ``[1,"a",`` neither ``1``
nor ``"a"`` comes again (:mod:`constrained_k2.engines.llguidance.written`). Strings are compared as values. Numbers are
compared as texts, so each has one spelling. Arrays with objects or arrays as items are relaxed.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from constrained_k2.grammar.lark.open_keys import ends_freely
from constrained_k2.grammar.lark.terminals import NoExactGrammar
from constrained_k2.grammar.plan.leaves import is_endless, is_text
from constrained_k2.schema.shapes import Array, Number, Object, Shape, String, Value

if TYPE_CHECKING:
    from constrained_k2.grammar.lark.writer import LarkWriter

_KEYWORD = ("uniqueItems",)
_MAY_REPEAT = "an item may repeat once every allowed item with the same prefix has been used"
_NO_EXPONENT = "numbers are written without an exponent, and without zeros at their end"


def compared_items(writer: "LarkWriter", shape: Array) -> Array:
    """Return how an array whose items a matcher compares is written.

    Raises:
        NoExactGrammar: The items are not compared.
    """
    array, wider = writer.node, replace(shape, unique=False)
    if shape.prefix or shape.contains:
        raise NoExactGrammar("uniqueItems combined with prefixItems or contains", _KEYWORD, wider)
    shapes = [one for one in writer.productivity.shapes(shape.rest) if writer.productivity.has_value(one)]
    if any(map(_is_container, shapes)):
        raise NoExactGrammar("items that are objects or arrays are not compared", _KEYWORD, wider)
    if not _never_run_out(shapes):
        writer.note(_KEYWORD, "relaxed", _MAY_REPEAT)
    numbers = [one for one in shapes if isinstance(one, Number)]
    if not all(one.integer or one.multiple for one in numbers):
        writer.note(_KEYWORD, "narrowed", _NO_EXPONENT)
    item = shape.rest
    if numbers:
        once = (replace(one, once=True) if isinstance(one, Number) else one for one in shapes)
        item = writer.normalizer.part_of(shape.rest, "each number once", tuple(once))
        writer.productivity.analyze(item)
    writer.model.nodes[array].compared = (item, b"ntf0" if all(one.integer for one in numbers) else b"ntf")
    return replace(wider, rest=item)


def _is_container(shape: Shape) -> bool:
    return isinstance(shape.value if isinstance(shape, Value) else shape, (Object, Array, dict, list))


def _never_run_out(shapes: Iterable[Shape]) -> bool:
    """Return True if each beginning of a string or number can go on to endlessly many others.

    Numbers end after 40 digits, and only one with as many may come again. Null and Booleans need no others: once
    written, their first byte is forbidden.
    """
    strings = [one for one in shapes if isinstance(one, String)]
    values = [one for one in shapes if isinstance(one, Value)]
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
