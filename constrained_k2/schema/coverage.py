"""The coverage report: says how far the grammar of a schema enforces each keyword of the schema.

The status of a keyword is enforced, narrowed, relaxed, refused or ``read_as``. Narrowed: the grammar allows less than
the keyword; relaxed: more. ``read_as``: the keyword is not JSON Schema, such as ``"nullable": true``, and counts as the
JSON Schema that it clearly means.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

from constrained_k2.schema.document import SchemaDocument, unescape
from constrained_k2.schema.keywords import keyword_uses

Status = Literal["enforced", "narrowed", "read_as", "relaxed", "refused"]
Notes = Mapping[str, Sequence[tuple[Status, str]]]
"""Pointer of a keyword that is not enforced exactly -> its statuses, each with the reason."""
STATUSES: tuple[Status, ...] = get_args(Status)


class KeywordUse(NamedTuple):
    """One occurrence of a keyword, with one reason; an occurrence with several reasons is listed once for each."""

    pointer: str  # #/properties/city/minLength
    reason: str = ""  # why it is not enforced exactly; empty if it is

    @property
    def keyword(self) -> str:
        """The keyword."""
        return unescape(self.pointer.rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class Coverage:
    """The status of each keyword of one schema under one engine.

    A keyword that is enforced has no other status. A keyword may be narrowed and relaxed at once: then the grammar
    lacks some valid values and allows some invalid ones.
    """

    engine: str
    enforced: tuple[KeywordUse, ...] = ()  # the grammar allows exactly what the keyword allows
    narrowed: tuple[KeywordUse, ...] = ()  # the grammar allows less; everything it allows is valid
    read_as: tuple[KeywordUse, ...] = ()  # not JSON Schema, but its meaning elsewhere is clear: "type": "int"
    relaxed: tuple[KeywordUse, ...] = ()  # the grammar allows more; calls may be invalid in this respect
    refused: tuple[KeywordUse, ...] = ()  # no grammar is built, because of this keyword

    @property
    def is_sound(self) -> bool:
        """True if everything that the grammar allows is an instance of the schema."""
        return not self.relaxed and not self.refused

    @property
    def inexact(self) -> tuple[KeywordUse, ...]:
        """The relaxed and ``read_as`` occurrences; a strict tool that has one is refused."""
        return self.relaxed + self.read_as

    def by_status(self) -> dict[Status, tuple[KeywordUse, ...]]:
        """The occurrences under each status."""
        return {status: getattr(self, status) for status in STATUSES}

    def noting(self, pointer: str, status: Status, reason: str) -> "Coverage":
        """A copy of this report with a further status for one occurrence."""
        noted: dict[str, Any] = {status: tuple(sorted((*self.by_status()[status], KeywordUse(pointer, reason))))}
        return replace(self, enforced=tuple(use for use in self.enforced if use.pointer != pointer), **noted)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        uses: dict[str, Any] = {
            status: [{"pointer": use.pointer} | ({"reason": use.reason} if use.reason else {}) for use in found]
            for status, found in self.by_status().items()
        }
        return {"engine": self.engine, "sound": self.is_sound} | uses


def coverage_of(document: SchemaDocument, engine: str, notes: Notes) -> Coverage:
    """The coverage of a schema, from the ``notes`` that compiling it for an engine left."""
    enforced = sorted(set(keyword_uses(document)).difference(notes))
    found: dict[Status, list[KeywordUse]] = {status: [] for status in STATUSES}
    found["enforced"] = [KeywordUse(pointer) for pointer in enforced]
    for pointer, noted in notes.items():
        for status, reason in noted:
            found[status].append(KeywordUse(pointer, reason))
    by_status: dict[str, Any] = {status: tuple(sorted(uses)) for status, uses in found.items()}
    return Coverage(engine, **by_status)


def refusal(document: SchemaDocument, engine: str, pointer: str, reason: str) -> Coverage:
    """The coverage of a schema that has no grammar because of the part at ``pointer``."""
    return coverage_of(document, engine, {pointer or "#": [("refused", reason)]})
