"""The whole tool-call format as a structural tag, the JSON in which xgrammar takes formats.

Two spellings of the markers. By token id (formats ``token`` and ``any_tokens``, newer xgrammar's), a marker is a token.
As text, the ordinary tokens that spell a marker are one too: for EBNF, and engines that do not know token formats.
What structural tags cannot say: properties in any order with each exactly once, and the index of a later call.
"""

from collections.abc import Mapping
from typing import Any

from constrained_k2.format import ABSENT, MARKER_TEXTS, ToolCallFormat
from constrained_k2.tools import ToolCallSpec

_INDEX = "0|[1-9][0-9]*"


class StructuralTagWriter:
    """Writes the structural tag of one request.

    Args:
        spec: The request.
        schemas: Function name -> the schema of its arguments.
        markers: The markers' ids, for markers by id; None for markers as text.
        in_reasoning: Whether the prompt ends in ``<think>``.
    """

    def __init__(
        self,
        spec: ToolCallSpec,
        schemas: Mapping[str, Any],
        markers: ToolCallFormat | None,
        *,
        in_reasoning: bool = False,
    ) -> None:
        self._spec = spec
        self._schemas = schemas
        self._markers = markers
        self._in_reasoning = in_reasoning

    def write(self) -> dict[str, Any]:
        """The structural tag. The stops are not in it: the engine allows its own where the format may end."""
        return {"type": "structural_tag", "format": self._turn()}

    def _turn(self) -> dict[str, Any]:
        """The forms of a turn. The section is written once, since the schemas are in it."""
        required = self._spec.choice == "required"
        opening = [] if self._in_reasoning else [self._marker("think_begin")]
        answer = [] if required else [self._text()]
        whole = [] if self._in_reasoning else [answer]  # without a section
        reasoning = []
        if self._spec.thinking or self._in_reasoning:
            whole.append([*opening, self._text(), self._marker("think_end"), *answer])
            reasoning = [[*opening, self._text()]]  # a call may open out of it
        if self._spec.max_calls == 0:
            return _either(whole)
        before = [parts for parts in (*whole, *reasoning) if parts]
        if not before:
            return self._section()
        lead = _either(before)
        if [] in whole:
            lead = {"type": "optional", "content": lead}
        turn = [lead, self._section()]
        return _either([turn] if required else [turn, *whole])

    def _section(self) -> dict[str, Any]:
        calls = _either([[self._call(tool.name)] for tool in self._spec.tools])
        if self._spec.max_calls is None:
            calls = {"type": "plus", "content": calls}
        return _sequence(self._marker("section_begin"), calls, self._marker("section_end"))

    def _call(self, name: str) -> dict[str, Any]:
        """One call. Only where a turn holds one call is its index the one that is due."""
        if self._spec.max_calls == 1:
            header = [_text(f"functions.{name}:{self._spec.first_index}")]
        else:
            header = [_text(f"functions.{name}:"), {"type": "regex", "pattern": _INDEX}]
        return _sequence(
            self._marker("call_begin"),
            *header,
            self._marker("argument_begin"),
            {"type": "json_schema", "json_schema": self._schemas[name]},
            self._marker("call_end"),
        )

    def _marker(self, field: str) -> dict[str, Any]:
        if self._markers is None:
            return _text(MARKER_TEXTS[field])
        return {"type": "token", "token": getattr(self._markers, field)}

    def _text(self) -> dict[str, Any]:
        """Any text without markers."""
        if self._markers is None:
            return {"type": "any_text", "excludes": list(MARKER_TEXTS.values())}
        ids = sorted({getattr(self._markers, field) for field in MARKER_TEXTS} - {ABSENT})
        return {"type": "any_tokens", "exclude_tokens": ids}


def _text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": list(elements)}


def _either(ways: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """One of several sequences."""
    elements = [_sequence(*parts) for parts in ways]
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": elements}
