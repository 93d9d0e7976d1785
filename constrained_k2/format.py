"""Kimi K2's tool-call wire format, held once: markers, stops and the call-id rule in both directions.

    <|tool_calls_section_begin|>
      <|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Beijing"}<|tool_call_end|>
    <|tool_calls_section_end|><|im_end|>

Sources: Kimi K2 technical report, appendix B (format and numbering of calls); the checkpoint's tokenizer_config.json
(ids of the special tokens).
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, fields

from constrained_k2.errors import FormatMismatch, InvalidRequest

MARKER_TEXTS: Mapping[str, str] = {
    "section_begin": "<|tool_calls_section_begin|>",
    "section_end": "<|tool_calls_section_end|>",
    "call_begin": "<|tool_call_begin|>",
    "argument_begin": "<|tool_call_argument_begin|>",
    "call_end": "<|tool_call_end|>",
    "think_begin": "<think>",
    "think_end": "</think>",
    "turn_end": "<|im_end|>",
    "text_end": "[EOS]",
}
"""Field of :class:`ToolCallFormat` -> the text that the tokenizer maps to that one id."""

ABSENT = -1
"""The id of a marker that a vocabulary does not have; no token has it."""

_MAY_BE_ABSENT = frozenset({"think_begin", "think_end"})  # K2-Instruct's tokenizer names no such tokens

_SPECIAL_TEXT = re.compile(
    r"<\|[^|<>]{1,64}\|>|</?think>|\[(?:BOS|EOS|EOT|UNK|PAD)\]",
)
_CALL_ID = re.compile(r"functions\.(?P<name>.+):(?P<index>0|[1-9][0-9]{0,17})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """The ids of Kimi K2's markers in one vocabulary, and the rule for call ids.

    Attributes:
        section_begin: Opens the tool-calls section of a turn.
        section_end: Closes it; only a stop may follow.
        call_begin: Opens a call; its id follows as ordinary text.
        argument_begin: Ends the id; the arguments' JSON follows as ordinary text.
        call_end: Ends the arguments and the call.
        think_begin: Opens reasoning; :data:`ABSENT` where the vocabulary has no such token.
        think_end: Closes reasoning; the same.
        turn_end: Ends the assistant's turn.
        text_end: The tokenizer's own end-of-sequence token, on which servers stop too.
    """

    section_begin: int
    section_end: int
    call_begin: int
    argument_begin: int
    call_end: int
    think_begin: int
    think_end: int
    turn_end: int
    text_end: int

    @property
    def stop_ids(self) -> tuple[int, int]:
        """The ids that end a completion."""
        return (self.turn_end, self.text_end)

    @classmethod
    def located_in(cls, special_tokens: Mapping[str, int]) -> "ToolCallFormat":
        """Find the markers in a vocabulary.

        Args:
            special_tokens: Text -> id of every special token of the vocabulary.

        Raises:
            FormatMismatch: A marker is not a single special token there.
        """
        missing = [
            text for name, text in MARKER_TEXTS.items() if text not in special_tokens and name not in _MAY_BE_ABSENT
        ]
        if missing:
            raise FormatMismatch(
                f"the vocabulary has no single special token for {', '.join(missing)}",
                "tokenizer",
                "Use the tokenizer of a Kimi K2 checkpoint",
            )
        return cls(**{name: special_tokens.get(text, ABSENT) for name, text in MARKER_TEXTS.items()})

    def marker_names(self) -> dict[int, str]:
        """Id -> text of every marker, for messages and transcripts."""
        found = {getattr(self, field.name): MARKER_TEXTS[field.name] for field in fields(self)}
        found.pop(ABSENT, None)
        return found

    @staticmethod
    def call_id(name: str, index: int) -> str:
        """The id of a call: ``functions.NAME:INDEX``.

        Args:
            name: The function's name; see :meth:`name_problem` for those that cannot be.
            index: The number of tool calls before this one in the whole dialog.

        Raises:
            InvalidRequest: The name cannot stand in a call id, or the index is negative.
        """
        problem = ToolCallFormat.name_problem(name)
        if problem:
            raise InvalidRequest(f"the name {name[:80]!r} {problem}", "name", "Rename the function")
        if index < 0:
            raise InvalidRequest(f"the index must not be negative, but is {index}", "index")
        return f"functions.{name}:{index}"

    @staticmethod
    def parse_call_id(call_id: str) -> tuple[str, int]:
        """The inverse of :meth:`call_id`.

        The index is what stands behind the *last* colon, so names may hold colons and dots.

        Raises:
            InvalidRequest: The text is not exactly ``functions.NAME:INDEX`` (index in ASCII digits, no leading zero).
        """
        match = _CALL_ID.fullmatch(call_id)
        if match is None or ToolCallFormat.name_problem(match["name"]):
            raise InvalidRequest(f"{call_id[:80]!r} is not of the form functions.NAME:INDEX", "call id")
        return match["name"], int(match["index"])

    @staticmethod
    def name_problem(name: str) -> str:
        """Why a function of this name cannot be called in this format; empty if it can."""
        if not name:
            return "is empty"
        if special := _SPECIAL_TEXT.search(name):
            return f"holds the text of a special token, {special[0]!r}"
        # Nothing printable is of these categories; the quick test first, since every tool of every request is asked.
        if not name.isprintable() and any(unicodedata.category(character) in {"Cc", "Cs"} for character in name):
            return "holds a control character or a lone surrogate"
        return ""


KIMI_K2 = ToolCallFormat(
    section_begin=163595,
    section_end=163596,
    call_begin=163597,
    argument_begin=163598,
    call_end=163599,
    think_begin=163606,
    think_end=163607,
    turn_end=163586,
    text_end=163585,
)
"""The format in Kimi K2's vocabulary. Checkpoints whose tokenizer names no ``<think>`` have :data:`ABSENT` there."""
