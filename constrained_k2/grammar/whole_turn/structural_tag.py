"""Writes the grammar of a whole turn as a structural tag, xgrammar's JSON notation for output formats.

Markers are written as token ids or as text. Token ids (formats ``token`` and ``any_tokens`` of newer xgrammar versions)
match only the special token. Text, for EBNF and for engines without token formats, also matches ordinary tokens that
spell the marker.
Structural tags cannot express properties in any order with each key once, nor the index of a later call.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from constrained_k2.formats.base import ABSENT
from constrained_k2.formats.kimi_k2 import MARKER_TEXTS, ToolCallFormat
from constrained_k2.request.spec import ToolCallSpec


@dataclass(frozen=True, slots=True)
class StructuralTagWriter:
    """Writes the structural tag of one request."""

    spec: ToolCallSpec
    schemas: Mapping[str, Any]  # function name -> the schema of its arguments
    markers: ToolCallFormat | None  # None to write markers as text
    in_reasoning: bool = False  # True if the prompt ends in <think>
    form: Any = None  # the response format's schema; None for any text

    def write(self) -> dict[str, Any]:
        """Return the structural tag. It has no stops: the engine allows its stop tokens where the format may end."""
        return {"type": "structural_tag", "format": self._turn()}

    def _turn(self) -> dict[str, Any]:
        """Return the alternatives of a turn. The section is written only once, since it contains the schemas."""
        only_section = self.spec.choice == "required" or self.form is not None  # no text before a section
        opening = [] if self.in_reasoning else [self._marker("think_begin")]
        answer = [] if only_section else [self._text()]
        whole = [] if self.in_reasoning else [answer]  # without a section
        reasoning = []
        if self.spec.thinking or self.in_reasoning:
            whole.append([*opening, self._text(), self._marker("think_end"), *answer])
            reasoning = [[*opening, self._text()]]  # a call may begin inside it
        if self.spec.max_calls == 0:
            return _either(whole if self.form is None else [[*_lead(whole), _instance(self.form)]])
        turn = [*_lead([*whole, *reasoning]), self._section()]
        if self.form is not None:
            return _either([turn, [*_lead(whole), _instance(self.form)]])
        return _either([turn] if only_section else [turn, *whole])

    def _section(self) -> dict[str, Any]:
        calls = _either([[self._call(tool.name)] for tool in self.spec.tools])
        if self.spec.max_calls is None:
            calls = {"type": "plus", "content": calls}
        elif self.spec.max_calls > 1:
            calls = {"type": "repeat", "min": 1, "max": self.spec.max_calls, "content": calls}
        return _sequence(self._marker("section_begin"), calls, self._marker("section_end"))

    def _call(self, name: str) -> dict[str, Any]:
        """Return one call. The index is exact only if the turn has one call."""
        header = [_text(f"functions.{name}:"), {"type": "regex", "pattern": "0|[1-9][0-9]*"}]
        if self.spec.max_calls == 1:
            header = [_text(f"functions.{name}:{self.spec.first_index}")]
        begin, argument_begin, end = map(self._marker, ("call_begin", "argument_begin", "call_end"))
        return _sequence(begin, *header, argument_begin, _instance(self.schemas[name]), end)

    def _marker(self, field: str) -> dict[str, Any]:
        if self.markers is None:
            return _text(MARKER_TEXTS[field])
        return {"type": "token", "token": getattr(self.markers, field)}

    def _text(self) -> dict[str, Any]:
        """Return any text without markers."""
        if self.markers is None:
            return {"type": "any_text", "excludes": list(MARKER_TEXTS.values())}
        ids = sorted({getattr(self.markers, field) for field in MARKER_TEXTS} - {ABSENT})
        return {"type": "any_tokens", "exclude_tokens": ids}


def _text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def _instance(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema}


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": list(elements)}


def _lead(alternatives: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the alternatives for the beginning of a turn; the beginning is optional if an alternative is empty."""
    some = [parts for parts in alternatives if parts]
    if not some:
        return []
    lead = _either(some)
    return [{"type": "optional", "content": lead} if [] in alternatives else lead]


def _either(alternatives: list[list[dict[str, Any]]]) -> dict[str, Any]:
    elements = [_sequence(*parts) for parts in alternatives]
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": elements}
