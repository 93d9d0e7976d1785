"""Arrays of unequal items outside of a finite set: each value has one text, and a matcher compares the texts.

A string is written in one spelling, a number without an exponent and without trailing zeros. So two items are equal if
their texts are, and the values so far are forbidden as texts (:mod:`constrained_k2.engines.llguidance.unique_items`).
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from constrained_k2.grammar.lark.digits import number_range
from constrained_k2.grammar.lark.leaves import eased, string_expression
from constrained_k2.grammar.lark.terminals import NoExactGrammar, key, literal
from constrained_k2.schema.shapes import Array, Boolean, Node, Null, Number, Shape, String, Value

if TYPE_CHECKING:
    from constrained_k2.grammar.lark.writer import LarkWriter

MAX_SHORTEST = 256  # of an array for which it has to be counted whether there are as many values
_MAX_TEXTS = 512  # of the finite alternatives of an item
_STRING = r'/"(?:[^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00(?:0[0-7bef]|1[0-9a-f]))*"/'
# Fractions with at most 15 digits: as doubles, which most readers use, no two of them are equal.
_FRACTION = r"-?(?:0|[1-9][0-9]{0,13})\.[0-9]{0,13}[1-9]"
_INTEGER = "(?:0|-?[1-9][0-9]{0,39})"
_NUMBER = rf"/(?:{_INTEGER}|{_FRACTION})/ & /-?(?:[0-9]{{1,40}}|[0-9.]{{1,16}})/"
_IS_NUMBER = re.compile(rf"{_INTEGER}|{_FRACTION}")


@dataclass(frozen=True, slots=True)
class ItemTexts:
    """The texts of an array's items, as Lark expressions.

    Attributes:
        expressions: A text of any of them is an item.
        is_endless: True if whatever an item begins with, it can end in endlessly many ways.
    """

    expressions: tuple[str, ...]
    is_endless: bool

    def lark(self) -> str:
        """The grammar of one item."""
        lines = [f"T{number}: {text}" for number, text in enumerate(self.expressions)]
        return "\n".join(["start: " + " | ".join(f"T{number}" for number in range(len(lines))), *lines])


def compared_items(writer: "LarkWriter", shape: Array) -> str:
    """Return the rule of an item of an array whose items a matcher compares.

    Raises:
        NoExactGrammar: The items cannot be compared.
    """
    without = replace(shape, unique=False)

    def failed(problem: str) -> NoExactGrammar:
        return NoExactGrammar(problem, ("uniqueItems",), without)

    if shape.prefix or shape.contains:
        raise failed("uniqueItems combined with prefixItems or contains")
    shapes = [one for one in writer.productivity.shapes(shape.rest) if writer.productivity.has_value(one)]
    try:
        expressions = tuple(dict.fromkeys(text for one in shapes for text in _expressions(writer, one)))
    except NoExactGrammar as error:
        raise failed(f"items with equal values cannot be told apart by their texts: {error}") from error
    if len(expressions) > _MAX_TEXTS:
        raise failed(f"items from more than {_MAX_TEXTS} values")
    texts = ItemTexts(expressions, all(one == String() for one in shapes))
    if not texts.is_endless and shape.shortest > 1:
        if shape.shortest > MAX_SHORTEST:
            raise failed(f"more than {MAX_SHORTEST} items that have to be there")
        if not writer.has_texts(texts.lark(), shape.shortest):
            raise failed(f"it is not certain that there are {shape.shortest} values to write")
    item = shape.rest | {("item of unequal ones", True)}
    writer.shapes.setdefault(item, list(shapes))
    written = replace(shape, rest=item, unique=False)
    writer.unique_items[written] = texts
    _note(writer, shape.rest, shapes)
    writer.written_as[shape] = written
    return writer.choice([writer.terminal(text) for text in expressions])


def _expressions(writer: "LarkWriter", shape: Shape) -> Iterator[str]:
    """Yield terminals' expressions of a shape's values, each value in one spelling."""
    match shape:
        case String():
            shape = eased(writer, shape)
            yield _STRING if shape == String() else f"{_STRING} & {string_expression(shape)}"
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
            yield _constant(shape)
        case _:
            raise NoExactGrammar(f"an {shape.kind} has many texts", (), shape)


def _constant(shape: Value) -> str:
    value = shape.value
    if isinstance(value, str):
        return key(value)
    if isinstance(value, dict | list):
        raise NoExactGrammar("objects and arrays have many texts", (), shape)
    text = json.dumps(value)
    if type(value) in {int, float} and not _IS_NUMBER.fullmatch(text):
        raise NoExactGrammar(f"the number {text} has several texts", (), shape)
    return literal(text)


def _note(writer: "LarkWriter", node: Node, shapes: list[Shape]) -> None:
    """Note which numbers are not written."""
    numbers = [shape for shape in shapes if isinstance(shape, Number)]
    outer, writer.node = writer.node, node
    if any(shape.integer for shape in numbers):
        writer.note(("type", "multipleOf"), "narrowed", "1.0, an integer to JSON Schema, is never written")
    if not all(shape.integer for shape in numbers):
        reason = "in uniqueItems, numbers are written without an exponent, and fractions with at most 15 digits"
        writer.note(("type",), "narrowed", reason)
    writer.node = outer
