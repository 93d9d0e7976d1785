"""The values of a grammar's nodes, where they are simple enough to compute masks without an engine.

A node has rules if its values are strings of any characters, listed ones or those of one terminal, numbers without
bounds or those of one terminal, listed literals, arrays of one kind of item, and objects whose keys are told apart by
bits alone. Any other node is opaque.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from json import JSONEncoder
from typing import Literal

from constrained_k2.grammar.lark.model import GrammarModel, WrittenNode
from constrained_k2.schema.shapes import (
    ANY,
    Array,
    Boolean,
    Node,
    Null,
    Number,
    Object,
    Shape,
    String,
    Value,
)

_quoted = JSONEncoder(ensure_ascii=False).encode
NumberKind = Literal["", "integer", "number"]
_WORDS = {None: b"null", True: b"true", False: b"false"}
_ANY_STRING, _ANY_NUMBER, _ANY_INTEGER = String(), Number(), Number(integer=True)


@dataclass(frozen=True, slots=True)
class ObjectRule:
    """The members of a node's objects, in any order, each declared key once."""

    keys: tuple[tuple[bytes, int], ...]  # each as it is written, with quotes, and the node of its value, by bit
    required: int  # bits of the keys that an object must have
    extra: int | None  # the node of the values under other keys; None if there are none
    any_spelling: bool = False  # True if the other keys may be spelled in any way


@dataclass(frozen=True, slots=True)
class ArrayRule:
    """The items of a node's arrays."""

    item: int  # node
    shortest: int
    longest: int | None


@dataclass(frozen=True, slots=True)
class ValueRule:
    """The values of a node; all of them may occur together."""

    has_strings: bool = False  # any string
    listed: tuple[bytes, ...] = ()  # the strings, as they are written, if only these
    string: str = ""  # the expression of a terminal, if the strings are its matches
    number: NumberKind = ""
    range: str = ""  # the same of the numbers
    words: tuple[bytes, ...] = ()
    object: ObjectRule | None = None
    array: ArrayRule | None = None


MANY_TEXTS = 500
"""Strings of a list, at most, that are alternatives of a rule: 5,000 took LLGuidance (1.7.6) 0.2 s in a step."""
DirectModel = tuple[ValueRule | None, ...]
"""The rules of a grammar's nodes, by their numbers in its state model; None for an opaque node."""


def direct_model(model: GrammarModel) -> DirectModel:
    """Return the rules of all nodes."""
    numbers = model.numbers
    rules: list[ValueRule | None] = []
    for node, written in model.nodes.items():
        try:
            rules.append(any_rule(numbers[ANY]) if node == ANY else _rule(written, model.terminals, numbers))
        except _OpaqueError:
            rules.append(None)
    return tuple(rules)


class _OpaqueError(Exception):
    pass


def any_rule(number: int) -> ValueRule:
    """Return the rule of any value, by the number of its node."""
    members, items = ObjectRule((), 0, number, any_spelling=True), ArrayRule(number, 0, None)
    return ValueRule(
        has_strings=True, number="number", words=tuple(sorted(_WORDS.values())), object=members, array=items
    )


def _rule(  # noqa: PLR0912 - a case for each type
    written: WrittenNode, terminals: Mapping[Shape, str], numbers: Mapping[Node, int]
) -> ValueRule:
    has_strings, string, range_ = False, "", ""
    kinds: set[NumberKind] = set()
    listed, words = set[bytes](), set[bytes]()
    members: ObjectRule | None = None
    items: ArrayRule | None = None
    for shape in written.shapes:
        if shape == _ANY_STRING:
            has_strings = True
        elif shape in (_ANY_NUMBER, _ANY_INTEGER):
            kinds.add("number" if shape == _ANY_NUMBER else "integer")
        elif isinstance(shape, String) and shape in terminals:
            before, string = string, terminals[shape] if shape.absent else written.strings or terminals[shape]
            if before not in {"", string}:
                raise _OpaqueError
        elif isinstance(shape, Number) and not range_ and shape in terminals:
            range_ = terminals[shape]
        elif isinstance(shape, Null):
            words.add(_WORDS[None])
        elif isinstance(shape, Boolean):
            words |= {_WORDS[value] for value in shape.values}
        elif isinstance(shape, Value):
            _add_value(shape.value, listed, words)
        elif isinstance(shape, Object) and members is None and written.keys is not None:
            members = _members(*written.keys, numbers)
        elif isinstance(shape, Array) and items is None and written.items is not None and not shape.contains:
            item, shortest, longest = written.items
            items = ArrayRule(_number(item, numbers), shortest, longest)
        else:
            raise _OpaqueError
    if len(listed) > MANY_TEXTS:  # its terminal takes LLGuidance less time
        raise _OpaqueError
    if (string and (has_strings or listed)) or (range_ and kinds):  # LLGuidance's lexer reads both at once
        raise _OpaqueError
    kind: NumberKind = "number" if "number" in kinds else "integer" if kinds else ""
    some = () if has_strings else tuple(sorted(listed))
    return ValueRule(has_strings, some, string, kind, range_, tuple(sorted(words)), members, items)


def _add_value(value: object, listed: set[bytes], words: set[bytes]) -> None:
    if isinstance(value, str):
        listed.add(_written(value))
    elif value is None or isinstance(value, bool):
        words.add(_WORDS[value])
    else:
        raise _OpaqueError


def _members(
    keys: tuple[tuple[str, Node], ...], required: int, extra: Node | None, numbers: Mapping[Node, int]
) -> ObjectRule:
    written = tuple((_written(name), _number(node, numbers)) for name, node in keys)
    return ObjectRule(written, required, None if extra is None else _number(extra, numbers))


def _number(node: Node, numbers: Mapping[Node, int]) -> int:
    if node not in numbers:
        raise _OpaqueError
    return numbers[node]


def _written(text: str) -> bytes:
    try:
        return _quoted(text).encode()
    except UnicodeEncodeError:
        raise _OpaqueError from None
