"""A tool-call wire format as a value: its markers as text and as ids of one vocabulary, and its call ids."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from constrained_k2.errors import FormatMismatch, InvalidRequest

ABSENT = -1
"""Id of a marker that a vocabulary does not have. No token has this id."""

_INDEX = re.compile(r"0|[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFormat:
    """Markers, stops and call ids of one model family, with the ids of its markers in one vocabulary."""

    name: str  # the family, for messages
    marker_texts: Mapping[str, str] = field(repr=False, compare=False)  # field -> the text of that one id
    optional_markers: frozenset[str] = field(repr=False, compare=False)  # a vocabulary may lack these
    special_texts: frozenset[str] = field(repr=False, compare=False)  # every special token that has a name
    special_pattern: re.Pattern[str] = field(repr=False, compare=False)  # all texts that tokenizers may make special
    call_id_prefix: str = field(repr=False, compare=False)  # the function's name and ``:INDEX`` follow it
    section_begin: int = ABSENT  # opens the tool-calls section of a turn
    section_end: int = ABSENT  # closes it; only a stop may follow
    call_begin: int = ABSENT  # opens a call; its call id follows as ordinary text
    argument_begin: int = ABSENT  # ends the call id; the arguments' JSON follows as ordinary text
    call_end: int = ABSENT  # ends the arguments and the call
    think_begin: int = ABSENT  # opens reasoning
    think_end: int = ABSENT  # closes it
    turn_end: int = ABSENT  # ends the assistant's turn
    text_end: int = ABSENT  # the tokenizer's end-of-sequence token, on which servers stop too

    @property
    def stop_ids(self) -> tuple[int, int]:
        """The ids that end a completion."""
        return (self.turn_end, self.text_end)

    def located_in(self, special_tokens: Mapping[str, int]) -> Self:
        """This format with its markers' ids in a vocabulary, given by the text -> id of its special tokens.

        Raises:
            FormatMismatch: A marker is not a single special token there.
        """
        ids = {name: special_tokens.get(text, ABSENT) for name, text in self.marker_texts.items()}
        required = self.marker_texts.keys() - self.optional_markers
        if absent := [text for name, text in self.marker_texts.items() if name in required and ids[name] == ABSENT]:
            problem = f"the vocabulary has no single special token for {', '.join(absent)}"
            raise FormatMismatch(problem, "tokenizer", f"Use the tokenizer of a {self.name} checkpoint")
        return replace(self, **ids)  # type: ignore[arg-type] # ids of markers only

    def call_id(self, name: str, index: int) -> str:
        """The id of a call, such as ``functions.NAME:INDEX``; INDEX counts the dialog's calls before this one.

        Raises:
            InvalidRequest: The name cannot be part of a call id, or the index is negative.
        """
        if problem := self.name_problem(name):
            raise InvalidRequest(f"the name {name[:80]!r} {problem}", "name", "Rename the function")
        if index < 0:
            raise InvalidRequest(f"the index must not be negative, but is {index}", "index")
        return f"{self.call_id_prefix}{name}:{index}"

    def parse_call_id(self, call_id: str) -> tuple[str, int]:
        """Function name and index of a call id; the inverse of :meth:`call_id`.

        The index follows the *last* colon, so names may contain colons and dots.

        Raises:
            InvalidRequest: The text is not a call id (the index has ASCII digits and no leading zero).
        """
        name, _, index = call_id.removeprefix(self.call_id_prefix).rpartition(":")
        is_prefixed = call_id.startswith(self.call_id_prefix)
        if not is_prefixed or not _INDEX.fullmatch(index) or self.name_problem(name):
            raise InvalidRequest(f"{call_id[:80]!r} is not of the form {self.call_id_prefix}NAME:INDEX", "call id")
        return name, int(index)

    def name_problem(self, name: str) -> str:
        """Why a function of this name cannot be called in this format; empty if it can."""
        if not name:
            return "is empty"
        if special := self.special_pattern.search(name):
            return f"contains the text of a special token, {special[0]!r}"
        # No printable character has these categories; this faster test comes first, since every tool's name is checked.
        if not name.isprintable() and any(unicodedata.category(character) in {"Cc", "Cs"} for character in name):
            return "contains a control character or a lone surrogate"
        return ""
