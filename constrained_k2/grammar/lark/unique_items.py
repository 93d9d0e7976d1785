"""Arrays of unequal items outside of a finite set: each value has one text, and a matcher compares the texts.

A string is written in one spelling, a number without an exponent and without trailing zeros. So two items are equal if
their texts are, and the values so far are forbidden as texts (:mod:`constrained_k2.engines.llguidance.unique_items`).
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from constrained_k2.grammar.lark.digits import number_range
from constrained_k2.grammar.lark.leaves import eased, string_expression
from constrained_k2.grammar.lark.objects import JSON_FORM, object_rule
from constrained_k2.grammar.lark.terminals import BITS, NoExactGrammar, key, literal
from constrained_k2.schema.shapes import ANY, Array, Boolean, Kind, Node, Null, Number, Object, Shape, String, Value

if TYPE_CHECKING:
    from constrained_k2.grammar.lark.writer import LarkWriter

MANY = 100
"""Values are counted up to this number."""
ENDLESS = 1 << 62
"""More values than a request can hold."""
_WIDE = 10_000_000  # integers
_FAR = Fraction(10**39)  # from here on a range without a bound may end: numbers have 40 digits
_MAX_TEXTS = 512  # of the finite alternatives of an item
_STRING = r'/"(?:[^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00(?:0[0-7bef]|1[0-9a-f]))*"/'
# Fractions with at most 15 digits: as doubles, which most readers use, no two of them are equal.
_FRACTION = r"-?(?:0|[1-9][0-9]{0,13})\.[0-9]{0,13}[1-9]"
_INTEGER = "(?:0|-?[1-9][0-9]{0,39})"
_NUMBER = rf"/(?:{_INTEGER}|{_FRACTION})/ & /-?(?:[0-9]{{1,40}}|[0-9.]{{1,16}})/"
_IS_NUMBER = re.compile(rf"{_INTEGER}|{_FRACTION}")


@dataclass(frozen=True, slots=True)
class ItemTexts:
    """Texts of values, one for each, as Lark expressions.

    Attributes:
        expressions: A text of any of them is a value.
        is_endless: True if whatever a text begins with, it can end in endlessly many ways.
    """

    expressions: tuple[str, ...]
    is_endless: bool = False

    def lark(self) -> str:
        """The grammar of one text."""
        lines = [f"T{number}: {text}" for number, text in enumerate(self.expressions)]
        return "\n".join(["start: " + " | ".join(f"T{number}" for number in range(len(lines))), *lines])


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a closed object: its strings, numbers and so on, how many values it has, if it has to be there."""

    texts: ItemTexts
    count: int
    is_required: bool


@dataclass(frozen=True, slots=True)
class ItemObject:
    """A closed object as an item. At least one of its members has endlessly many values."""

    members: tuple[tuple[str, Member], ...]


@dataclass(frozen=True, slots=True)
class UniqueItems:
    """The items of an array whose items are compared.

    Attributes:
        texts: The strings, numbers and so on.
        object: The only objects, if they are closed.
        has_containers: True if objects or arrays are among the items: there are endlessly many of those.
    """

    texts: ItemTexts
    object: ItemObject | None = None
    has_containers: bool = False


def compared_items(writer: "LarkWriter", shape: Array, name: str) -> tuple[Array, str]:
    """Return an array as it is limited if a matcher compares its items, and the rule of an item.

    Raises:
        NoExactGrammar: The items cannot be compared.
    """
    try:
        return _compared(writer, shape, name)
    except NoExactGrammar as error:
        reason = f"items with equal values cannot be told apart: {error}"
        raise NoExactGrammar(reason, ("uniqueItems",), replace(shape, unique=False)) from error


def _compared(writer: "LarkWriter", shape: Array, name: str) -> tuple[Array, str]:
    if shape.prefix or shape.contains:
        raise NoExactGrammar("uniqueItems combined with prefixItems or contains", (), shape)
    limited, items = shape, ComparedValues(writer, shape.rest)
    found = items.unique_items(f"{name}_u")
    if not items.is_certain:
        known = f"only {MANY} values of a member are known"
        if shape.shortest > MANY:
            raise NoExactGrammar(known, (), shape)
        if shape.longest is None or shape.longest > MANY:
            writer.note(("uniqueItems",), "narrowed", f"no more than {MANY} items are written: {known}")
            limited = replace(shape, longest=MANY)
    if shape.shortest > 1 and not items.is_endless:
        count = writer.count_texts(found.texts.lark(), shape.shortest) if shape.shortest <= MANY else None
        if count != shape.shortest:
            raise NoExactGrammar(f"it is not certain that there are {shape.shortest} values to write", (), shape)
    written = replace(limited, rest=items.node, unique=False)
    writer.unique_items[written] = found
    writer.written_as[shape] = written
    return limited, items.rule


class ComparedValues:
    """The values of a node as they are written if they are compared.

    Attributes:
        node: Stands for these values in the writer's shapes.
        rule: The name of their rule.
        is_endless: True if there are more of them than a request can hold.
        is_certain: True unless the number of some member's values is only known to be ``MANY`` or more.
    """

    def __init__(self, writer: "LarkWriter", node: Node) -> None:
        self._writer = writer
        self._node = node
        productivity = writer.productivity
        self._shapes = [one for one in productivity.shapes(node) if productivity.has_value(one)]
        self._scalars = [one for one in self._shapes if not _is_container(one)]
        expressions = tuple(dict.fromkeys(text for one in self._scalars for text in _expressions(writer, one)))
        if len(expressions) > _MAX_TEXTS:
            raise NoExactGrammar(f"more than {_MAX_TEXTS} values", (), Null())
        self.texts = ItemTexts(expressions, all(one == String() for one in self._scalars))
        self.is_certain = True
        self.has_containers = len(self._scalars) < len(self._shapes)
        self.is_endless = self.has_containers or any(map(_is_endless, self._scalars))

    def unique_items(self, name: str) -> UniqueItems:
        """Write these values as the items of an array."""
        objects = [one for one in self._shapes if isinstance(one, Object)]
        if len(objects) != 1 or self._is_open(objects[0]):
            self._write()
            return UniqueItems(self.texts, None, self.has_containers)
        closed, writer = objects[0], self._writer
        part, _ = writer.normalizer.by_kind(self._node)["object"]
        spec = self._closed(closed, part, name)
        writer.shapes[part] = [closed]
        self._write({"object": (part, name)})
        return UniqueItems(self.texts, spec, has_containers=True)

    def member(self, *, is_required: bool) -> Member:
        """Write these values as a member of an object."""
        count = ENDLESS
        if (integers := self._integers()) is not None:
            count = integers
        elif not self.is_endless:
            found = self._writer.count_texts(self.texts.lark(), MANY)
            if found is None:
                raise NoExactGrammar("the number of a member's values is not known", (), Null())
            self.is_certain = found < MANY
            count = found if self.is_certain else ENDLESS
        self._write()
        return Member(self.texts, count, is_required)

    def _integers(self) -> int | None:
        """The number of values if they are a range of integers."""
        if len(self._shapes) != 1 or not isinstance(shape := self._shapes[0], Number) or not shape.integer:
            return None
        return None if shape.low is None or shape.high is None else int(shape.high) - int(shape.low) + 1

    def _write(self, written: "dict[Kind, tuple[Node, str]] | None" = None) -> None:
        writer, rules = self._writer, dict(written or {})
        for kind, (part, shapes) in writer.normalizer.by_kind(self._node).items():
            if kind in rules or not any(map(_is_container, shapes)) or not writer.productivity.analyze(part):
                continue
            if not all(map(self._is_open, writer.productivity.shapes(part))):
                raise NoExactGrammar(f"an {kind} that is not open beside others, or within a member", (), Null())
            rules[kind] = part, writer.rule(part)
        ways = [writer.terminal(text) for text in self.texts.expressions]
        self.rule = writer.choice([*ways, *(rule for _, rule in rules.values())])
        parts = [part for part, _ in rules.values()]
        self.node = parts[0] if len(parts) == 1 and not ways else self._node | {("compared", True)}
        if parts:
            writer.compared_parts[self.node] = parts
        else:
            writer.shapes.setdefault(self.node, list(self._shapes))
        _note(writer, self._node, self._scalars)

    def _closed(self, shape: Object, part: Node, name: str) -> ItemObject:
        """Write a closed object as an item."""
        writer, values = self._writer, dict[str, ComparedValues]()
        keys = list(writer.productivity.possible_keys(shape))
        if any(writer.productivity.is_productive(node) for _, node in writer.productivity.extra_nodes(shape)):
            raise NoExactGrammar("an object with keys by patterns or names", (), shape)
        if (
            len(keys) > BITS
            or shape.fewest > len(shape.required)
            or (shape.most is not None and shape.most < len(keys))
        ):
            raise NoExactGrammar(f"an object with more than {BITS} keys, or with a limit of them", (), shape)
        members = []
        for key_name in keys:
            values[key_name] = ComparedValues(writer, writer.normalizer.value_node(shape, key_name))
            members.append((key_name, values[key_name].member(is_required=key_name in shape.required)))
        if all(member.count < ENDLESS for _, member in members):
            raise NoExactGrammar("an object that has few values", (), shape)
        self.is_certain = all(each.is_certain for each in values.values())

        def written(_: "LarkWriter", key_name: str, __: Node) -> list[str]:
            return [f'{key(key_name)} ws ":" ws {values[key_name].rule} ws']

        outer, writer.node = writer.node, part
        try:
            body = object_rule(writer, shape, name, replace(JSON_FORM, members=written))
        finally:
            writer.node = outer
        writer.rules.append(f"{name}: {body}")
        writer.members[part] = [({key_name: each.node for key_name, each in values.items()}, frozenset(), False)]
        return ItemObject(tuple(members))

    def _is_open(self, shape: Shape) -> bool:
        """Return True for objects and arrays that can have another member or item, whatever they have."""
        productivity = self._writer.productivity
        if isinstance(shape, Object):
            (_, extra), *others = productivity.extra_nodes(shape)
            return not others and shape.most is None and shape.names == ANY and productivity.is_productive(extra)
        if isinstance(shape, Array):
            is_free = not shape.unique and not shape.contains
            return is_free and productivity.items(shape)[1] is None
        return False


def _is_container(shape: Shape) -> bool:
    return isinstance(shape.value if isinstance(shape, Value) else shape, (Object, Array, dict, list))


def _is_endless(shape: Shape) -> bool:
    """True if a shape has more values than a request can hold: there are a million characters."""
    if isinstance(shape, String):
        return not (shape.patterns or shape.formats or shape.absent) and shape.longest != 0
    if not isinstance(shape, Number):
        return False
    low = -_FAR if shape.low is None else shape.low
    high = _FAR if shape.high is None else shape.high
    is_near = max(abs(low), abs(high)) <= 10**9  # where fractions have six digits
    return high - low > _WIDE or (is_near and not shape.integer and high - low > 1)


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
    if not all(shape.integer for shape in numbers):
        reason = "numbers are written without an exponent, and fractions with at most 15 digits"
        writer.note(("uniqueItems",), "narrowed", reason)
    if any(shape.integer for shape in numbers):
        outer, writer.node = writer.node, node
        writer.note(("type", "multipleOf"), "narrowed", "1.0, an integer to JSON Schema, is never written")
        writer.node = outer
