"""Arrays of unequal items outside of a small set: a matcher compares what is written.

``{"type": "array", "items": {"type": ["string", "integer"]}, "uniqueItems": true}``: strings that may always go on are
compared as values, all others as texts: such a string has no needless escape, a number no exponent and no trailing
zeros (:mod:`constrained_k2.engines.llguidance.written`). Arrays with objects or arrays as items are relaxed.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from constrained_k2.grammar.lark.digits import number_range
from constrained_k2.grammar.lark.direct_model import AS_TEXTS
from constrained_k2.grammar.lark.leaves import (
    UNSIGNED,
    by_sign,
    eased,
    is_endless,
    is_text,
    joined_strings,
    string_rule,
    writable,
)
from constrained_k2.grammar.lark.terminals import NoExactGrammar, alone, key, literal
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
_IS_NUMBER = re.compile(rf"{_INTEGER}|{_FRACTION}")
_KEYWORD = ("uniqueItems",)
LONGEST = 128
"""Bytes of an item that is compared as a text, with its quotes and escapes: each of its tokens copies it."""
# A text of more bytes has at least a quarter as many characters: UTF-8 takes up to 4 bytes for one.
_IS_LONG = rf"/(?s:.{{{LONGEST + 1},}}|.*[^\x00-\x7f].*)/ & /(?s:.{{{LONGEST // 4},}})/"
_MAY_REPEAT = f"strings of more than {LONGEST - 2} bytes may come again if they have a pattern, a format or a maxLength"


@dataclass(frozen=True, slots=True)
class UniqueItems:
    """The items of an array whose items are compared.

    Attributes:
        lark: The grammar of one item that is compared as a text, a Lark text; empty if there are none.
        has_strings: True if strings are among the items that may always go on, so that nothing is the last of them.
    """

    lark: str
    has_strings: bool


def compared_items(writer: "LarkWriter", shape: Array) -> str:
    """Return the rule of an item of an array whose items a matcher compares.

    Raises:
        NoExactGrammar: The items cannot be compared.
    """
    try:
        return _compared(writer, shape)
    except NoExactGrammar as error:
        reason = f"items with equal values cannot be told apart: {error}"
        raise NoExactGrammar(reason, _KEYWORD, replace(shape, unique=False)) from error


def _compared(writer: "LarkWriter", shape: Array) -> str:
    if shape.prefix or shape.contains:
        raise NoExactGrammar("uniqueItems combined with prefixItems or contains", (), shape)
    shapes = [one for one in writer.productivity.shapes(shape.rest) if writer.productivity.has_value(one)]
    if any(map(_is_container, shapes)):
        raise NoExactGrammar("objects and arrays have many texts", (), shape)
    array, writer.node = writer.node, shape.rest
    strings = [eased(writer, one) for one in shapes if isinstance(one, String)]
    strings, writer.node = [String()] if String() in strings else strings, array
    listed = [key(one.value) for one in shapes if is_text(one)]
    others = [one for one in shapes if not (isinstance(one, String) or is_text(one))]
    words = [text for one in others for text in _expressions(one)]
    texts: list[str] = []
    if not all(map(is_endless, strings)):
        strings, texts = [], [writable(writer, one) for one in strings]
        words += texts
        if any(writer.has_match(f"{text} & {_IS_LONG}") for text in texts):
            writer.note(_KEYWORD, "relaxed", _MAY_REPEAT)
    if not strings:  # else these may be written in any spelling
        words += listed
    words = list(dict.fromkeys(words))
    if len(words) + len(listed) > _MAX_TEXTS:
        raise NoExactGrammar(f"more than {_MAX_TEXTS} values", (), shape)
    lark = alone(*words) if words else ""
    if shape.shortest > 1 and not strings and not any(map(_has_many, shapes)):
        count = writer.count_texts(lark, shape.shortest) if shape.shortest <= _MOST_COUNTED else None
        if count != shape.shortest:
            raise NoExactGrammar(f"it is not certain that there are {shape.shortest} values to write", (), shape)
    compared = shape.rest | {AS_TEXTS if texts else ("compared", True)}  # written otherwise than the node is elsewhere
    writer.node = shape.rest
    ways = [way for one in others for way in _ways(writer, one)]
    ways += map(writer.terminal, listed)
    ways += joined_strings(writer, compared, texts) if texts else _string_rules(writer, compared, strings)
    _note_numbers(writer, array, [one for one in shapes if isinstance(one, Number)])
    writer.node = array
    writer.shapes.setdefault(compared, shapes)
    written = replace(shape, rest=compared, unique=False)
    if all(isinstance(one, String) for one in shapes):
        writer.direct_arrays[array] = (compared, shape.shortest, writer.productivity.items(shape)[1])
    writer.unique_items[written] = UniqueItems(lark, bool(strings))
    writer.written_as[shape] = written
    return writer.choice(list(dict.fromkeys(ways)))


def _string_rules(writer: "LarkWriter", node: Node, shapes: list[String]) -> list[str]:
    """Return the alternatives of a rule for strings of these shapes."""
    around, writer.strings = writer.strings, {}
    ways = [string_rule(writer, shape) for shape in shapes]
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
