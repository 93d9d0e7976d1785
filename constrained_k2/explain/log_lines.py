"""The lines of the log of overrides: one for each examined turn, one for each override.

Without ``values`` a line holds no text but the tools' own: names of functions, keys and enum members that a tool
declares, markers, and JSON's punctuation. All other texts are null, all other keys of a pointer are ``*``.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import msgspec

from constrained_k2.explain.records import Override
from constrained_k2.request.spec import Tool, ToolCallSpec
from constrained_k2.schema.document import escape, unescape

OTHER = "*"
"""Stands in a pointer for an array's index, or for a key that no tool declares."""

_MAX_TEXT = 1000  # characters of a text or pointer
_MAX_NODES = 20_000  # values of a schema that are searched for declared texts
_PUNCTUATION = ' \t\r\n"\\:,{}[]'
_KEY_CAUSES = frozenset({
    "required", "properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames",
    "minProperties", "maxProperties", "dependencies", "dependentRequired", "unknown key", "repeated key",
    "end of the call",
})  # fmt: skip
_MEMBER_CAUSES = frozenset({"enum", "const"})


class TurnLine(msgspec.Struct, frozen=True, tag="turn", tag_field="kind"):
    """An examined turn: what the shares of overridden calls are measured against."""

    time: float  # seconds since 1970
    engine: int  # data-parallel rank
    turn: str  # an id of the turn, random
    calls: dict[str, int]  # complete calls by tool
    tokens: int
    examined: int  # rows of logits


class OverrideLine(msgspec.Struct, frozen=True, tag="override", tag_field="kind"):
    """An override: the fields of :meth:`Override.to_dict` without token ids, and where it was seen."""

    time: float
    engine: int
    turn: str
    call: int  # the number of the turn's calls that were begun before it
    position: int
    phase: str
    tool: str
    pointer: str | None
    keywords: tuple[str, ...]
    wanted: str | None  # None if it may not be logged
    written: str | None
    probability: float
    forbidden: float


Line = TurnLine | OverrideLine


class _Declared(NamedTuple):
    """The texts that a schema declares."""

    keys: frozenset[str]
    members: frozenset[str]


def override_line(  # noqa: PLR0913 - what is known of an override
    override: Override, markers: tuple[bool, bool], call: int, turn: TurnLine, constraint: ToolCallSpec, *, values: bool
) -> OverrideLine:
    """The line of an override of a turn.

    Args:
        override: The override.
        markers: True for the wanted and for the written token if it is a marker of the wire format.
        call: The number of calls that the turn began before it.
        turn: The line of its turn.
        constraint: The turn's constraint.
        values: True if any text may be logged.
    """
    place, row = override.place, override.row
    wanted, written = (
        text[:_MAX_TEXT] if values or is_marker or _is_declared(text, override, constraint) else None
        for text, is_marker in zip((override.wanted_text, override.written_text), markers, strict=True)
    )
    pointer = place.pointer
    if pointer and not values:
        pointer = _declared_pointer(pointer, _declared(_schema(place.tool, constraint)).keys)
    return OverrideLine(
        turn.time,
        turn.engine,
        turn.turn,
        call,
        row.position,
        place.phase,
        place.tool,
        None if pointer is None else pointer[:_MAX_TEXT],
        place.keywords,
        wanted,
        written,
        round(row.probability, 6),
        round(row.forbidden, 6),
    )


def general_pointer(pointer: str) -> str:
    """A pointer with :data:`OTHER` in the place of each index, so that all items of an array count as one place."""
    return "/".join(OTHER if each.isdigit() else each for each in pointer.split("/"))


def _is_declared(text: str, override: Override, constraint: ToolCallSpec) -> bool:
    """True if the tools themselves declare a token's text at its place, or if it is JSON's punctuation."""
    bare, place = text.strip(_PUNCTUATION), override.place
    if not bare:
        return True
    if place.phase == "call_id":
        declared: Iterable[str] = (tool.name for tool in constraint.tools)
    else:
        found = _declared(_schema(place.tool, constraint))
        causes = set(place.keywords)
        declared = (found.keys if causes & _KEY_CAUSES else frozenset()) | (
            found.members if causes & _MEMBER_CAUSES else frozenset()
        )
    return any(bare in each for each in declared)


def _declared_pointer(pointer: str, keys: frozenset[str]) -> str:
    parts = map(unescape, pointer.split("/")[1:])
    return "".join(f"/{escape(part) if part in keys else OTHER}" for part in parts)


def _schema(name: str, constraint: ToolCallSpec) -> str:
    """The schema's text of a function, or without a name that of the answer's form."""
    if name:
        return next((tool.schema for tool in constraint.tools if tool.name == name), Tool(name).schema)
    answer = constraint.answer
    return answer.text if answer is not None and answer.kind == "json" else Tool(name).schema


@lru_cache(maxsize=64)
def _declared(schema: str) -> _Declared:
    keys, members = set[str](), set[str]()
    waiting: list[object] = [json.loads(schema)]
    for _ in range(_MAX_NODES):
        if not waiting:
            break
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            for name, inner in value.items():
                if name == "properties" and isinstance(inner, dict):
                    keys.update(inner)
                    waiting += inner.values()
                elif name == "required" and isinstance(inner, list):
                    keys.update(each for each in inner if isinstance(each, str))
                elif name in _MEMBER_CAUSES:
                    listed = inner if name == "enum" and isinstance(inner, list) else [inner]
                    members.update(each if isinstance(each, str) else json.dumps(each) for each in listed)
                else:
                    waiting.append(inner)
    return _Declared(frozenset(keys), frozenset(members))
