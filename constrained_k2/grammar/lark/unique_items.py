"""Arrays of unequal items outside of a small set: a matcher compares what is written.

``{"type": "array", "items": {"type": ["string", "integer"]}, "uniqueItems": true}``: strings are compared as values,
numbers, ``true``, ``false``, ``null`` and listed strings as texts, so a number has no exponent and no trailing zeros
(:mod:`constrained_k2.engines.llguidance.written`). Arrays with objects or arrays as items are relaxed.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from constrained_k2.grammar.lark.digits import number_range
from constrained_k2.grammar.lark.leaves import (
    UNSIGNED,
    by_sign,
    is_endless,
    is_text,
    joined_strings,
    string_expression,
    string_rule,
)
from constrained_k2.grammar.lark.terminals import NoExactGrammar, key, literal
from constrained_k2.schema.shapes import Array, Boolean, Node, Null, Number, Object, Shape, String, Value

if TYPE_CHECKING:
    from constrained_k2.grammar.lark.writer import LarkWriter

_MOST_COUNTED = 100
"""Values are counted up to this number."""
_WIDE = 10_000_000  # integers: more than a request can hold
_FAR = Fraction(10**39)  # from here on a range without a bound may end: numbers have 40 digits
_MAX_TEXTS = 512  # of the finite alternatives of an item
# Fractions with at most 15 digits: as doubles, which most readers use, no two of them are equal.
_FRACTION = r"-?(?:0|[1-9][0-9]{0,13})\.[0-9]{0,13}[1-9]"
_INTEGER = "(?:0|-?[1-9][0-9]{0,39})"
_NUMBER = rf"/(?:{_INTEGER}|{_FRACTION})/ & /-?(?:[0-9]{{1,40}}|[0-9.]{{1,16}})/"
_FEW = 16  # strings that are compared as listed ones are
_IS_NUMBER = re.compile(rf"{_INTEGER}|{_FRACTION}")
_KEYWORD = ("uniqueItems",)
_MAY_REPEAT = "a string comes again if nothing else can be written: its length, pattern or format leaves few"


@dataclass(frozen=True, slots=True)
class UniqueItems:
    """The items of an array whose items are compared.

    Attributes:
        lark: The grammar of one number, word or listed string, a Lark text; empty if there are none.
        has_strings: True if strings are among the items that are not listed, or too many.
    """

    lark: str
    has_strings: bool


def compared_items(writer: "LarkWriter", shape: Array) -> tuple[Array, str]:
    """Return an array as it is written if a matcher compares its items, and the rule of an item.

    Raises:
        NoExactGrammar: The items cannot be compared.
    """
    try:
        return _compared(writer, shape)
    except NoExactGrammar as error:
        reason = f"items with equal values cannot be told apart: {error}"
        raise NoExactGrammar(reason, _KEYWORD, replace(shape, unique=False)) from error


def _compared(writer: "LarkWriter", shape: Array) -> tuple[Array, str]:
    if shape.prefix or shape.contains:
        raise NoExactGrammar("uniqueItems combined with prefixItems or contains", (), shape)
    shapes = [one for one in writer.productivity.shapes(shape.rest) if writer.productivity.has_value(one)]
    if any(map(_is_container, shapes)):
        raise NoExactGrammar("objects and arrays have many texts", (), shape)
    strings = [one for one in shapes if isinstance(one, String)]
    listed = [key(one.value) for one in shapes if is_text(one)]
    others = [one for one in shapes if not (isinstance(one, String) or is_text(one))]
    words = [text for one in others for text in _expressions(one)]
    texts: list[str] = []
    declared, few = shape, _few(writer, strings, [*words, *listed])
    if few is not None:
        strings, texts = [], [string_expression(one) for one in strings]
        words += texts
        shape = replace(shape, longest=few if shape.longest is None else min(shape.longest, few))
    if not strings:  # else these may be written in any spelling
        words += listed
    words = list(dict.fromkeys(words))
    if len(words) + len(listed) > _MAX_TEXTS:
        raise NoExactGrammar(f"more than {_MAX_TEXTS} values", (), shape)
    lark = _one_of(words) if words else ""
    if shape.shortest > 1 and not strings and not any(map(_has_many, shapes)):
        count = writer.count_texts(lark, shape.shortest) if shape.shortest <= _MOST_COUNTED else None
        if count != shape.shortest:
            raise NoExactGrammar(f"it is not certain that there are {shape.shortest} values to write", (), shape)
    compared = shape.rest | {("compared", True)}  # written otherwise than the node is elsewhere
    array, writer.node = writer.node, shape.rest
    ways = [way for one in others for way in _ways(writer, one)]
    ways += [*_string_rules(writer, compared, strings), *map(writer.terminal, [*listed, *texts])]
    _note_numbers(writer, array, [one for one in shapes if isinstance(one, Number)])
    writer.node = array
    if not all(map(is_endless, strings)):
        writer.note(_KEYWORD, "relaxed", _MAY_REPEAT)
    writer.shapes.setdefault(compared, shapes)
    written = replace(shape, rest=compared, unique=False)
    if len(strings) == len(shapes):
        writer.direct_arrays[array] = (compared, shape.shortest, writer.productivity.items(shape)[1])
    writer.unique_items[written] = UniqueItems(lark, bool(strings))
    writer.written_as[declared] = written
    return shape, writer.choice(list(dict.fromkeys(ways)))


def _few(writer: "LarkWriter", strings: list[String], others: list[str]) -> int | None:
    """Return the number of values if the strings are few, by a pattern such as ``^(a|b)$``; else None.

    ``others`` are the expressions of all other values.
    """
    if all(map(is_endless, strings)):
        return None
    try:
        count = writer.count_texts(_one_of([*map(string_expression, strings), *others]), _FEW)
    except NoExactGrammar:
        return None
    return None if count == _FEW else count


def _one_of(expressions: list[str]) -> str:
    """Return the grammar of a text that one of these terminals matches."""
    lines = [f"T{number}: {text}" for number, text in enumerate(expressions)]
    return "\n".join(["start: " + " | ".join(f"T{number}" for number in range(len(lines))), *lines])


def _string_rules(writer: "LarkWriter", node: Node, shapes: list[String]) -> list[str]:
    """Return the alternatives of a rule for strings of these shapes."""
    around, writer.strings = writer.strings, {}
    ways = []
    for shape in shapes:
        wider: Shape = shape
        while isinstance(wider, String):
            try:
                ways.append(string_rule(writer, wider))
                break
            except NoExactGrammar as error:
                writer.note(error.keywords, "relaxed", str(error))
                wider = error.wider
    strings, writer.strings = writer.strings, around
    return [*filter(None, ways), *joined_strings(writer, node, strings)]


def _is_container(shape: Shape) -> bool:
    return isinstance(shape.value if isinstance(shape, Value) else shape, (Object, Array, dict, list))


def _has_many(shape: Shape) -> bool:
    """Return True if a shape has more values than a request can hold."""
    if not isinstance(shape, Number):
        return False
    low = -_FAR if shape.low is None else shape.low
    high = _FAR if shape.high is None else shape.high
    is_near = max(abs(low), abs(high)) <= 10**9  # where fractions have six digits
    return high - low > _WIDE or (is_near and not shape.integer and high - low > 1)


def _expressions(shape: Shape) -> Iterator[str]:
    """Yield terminals' expressions of a shape's values, each value in one spelling."""
    match shape:
        case Number():
            if shape.multiple:
                raise NoExactGrammar("multiples of a number", (), shape)
            found = f"/{_INTEGER}/" if shape.integer else _NUMBER
            bounds = number_range(shape)
            yield f"{found} & {bounds}" if bounds else found
        case Null():
            yield literal("null")
        case Boolean():
            yield from (literal(json.dumps(value)) for value in sorted(shape.values))
        case Value():
            text = json.dumps(shape.value)
            if type(shape.value) in {int, float} and not _IS_NUMBER.fullmatch(text):
                raise NoExactGrammar(f"the number {text} has several texts", (), shape)
            yield literal(text)


def _ways(writer: "LarkWriter", shape: Shape) -> Iterator[str]:
    """Yield the alternatives of a rule for a shape's values."""
    if writer.signs_apart and isinstance(shape, Number):
        yield by_sign(shape, lambda half: writer.terminal(f"{next(_expressions(half))} & {UNSIGNED}"), zero_below=False)
        return
    for text in _expressions(shape):
        is_apart = writer.signs_apart and text.startswith('"-')
        yield f'"-" {writer.terminal(text.replace("-", "", 1))}' if is_apart else writer.terminal(text)


def _note_numbers(writer: "LarkWriter", array: Node, numbers: list[Number]) -> None:
    """Note which numbers are not written."""
    if any(shape.integer for shape in numbers):
        writer.note(("type", "multipleOf"), "narrowed", "1.0, an integer to JSON Schema, is never written")
    if not all(shape.integer for shape in numbers):
        writer.node = array
        reason = "numbers are written without an exponent, and fractions with at most 15 digits"
        writer.note(_KEYWORD, "narrowed", reason)
