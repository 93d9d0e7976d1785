"""Describes a tool-call wire format: markers, their ids in one vocabulary, transitions, call headers."""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from constrained_k2.errors import FormatMismatch, InvalidRequest
from constrained_k2.formats.phases import Phase, Transition

ABSENT = -1
"""Id of a marker that a vocabulary does not have. No token has this id."""

_INDEX = re.compile(r"0|[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFormat:
    """Markers, transitions, stops and call headers of one model family, with its markers' ids in one vocabulary.

    A call header is ``header_begin``, the function's name, ``header_index``, the call's index and ``header_end``.
    """

    name: str  # the model family, for messages
    marker_texts: Mapping[str, str] = field(repr=False, compare=False)  # name of an id field below -> marker text
    optional_markers: frozenset[str] = field(repr=False, compare=False)  # a vocabulary may lack these
    special_texts: frozenset[str] = field(repr=False, compare=False)  # every special token that has a name
    special_pattern: re.Pattern[str] = field(repr=False, compare=False)  # no name may contain it, in any format
    transitions: Mapping[Phase, tuple[Transition, ...]] = field(
        repr=False, compare=False
    )  # the transitions from each phase
    reasoning_opening: tuple[str | bytes, ...] = field(repr=False, compare=False)  # ends prompts that begin reasoning
    text_opening: tuple[str | bytes, ...] = field(default=(), repr=False, compare=False)  # ends prompts that begin text
    call_id_prefix: str = field(repr=False, compare=False)  # begins call ids in the API; name and ``:INDEX`` follow
    header_begin: str = field(repr=False, compare=False)
    header_index: str = field(repr=False, compare=False)  # between name and index; the last one counts
    header_end: str = field(default="", repr=False, compare=False)
    header_pieces: re.Pattern[str] = field(default=re.compile(r"(?s:.+)"), repr=False, compare=False)  # encoded alone
    escape_name: Callable[[str], str] = field(default=str, repr=False, compare=False)  # name -> its header spelling
    first_index: int = 0  # index of a dialog's first call
    counts_dialog: bool = True  # calls are numbered through the dialog; else anew in every turn
    argument_encoding: Literal["json", "xtml"] = "json"  # one JSON object, or a block for each of its members
    argument_fields: tuple[str, ...] = field(default=(), repr=False, compare=False)  # markers within the arguments
    section_begin: int = ABSENT  # opens the tool-calls section of a turn
    section_end: int = ABSENT  # closes it; only the end of the turn may follow
    call_begin: int = ABSENT  # opens a call; its header follows as ordinary text
    argument_begin: int = ABSENT  # ends the header; the arguments follow
    call_end: int = ABSENT  # ends the arguments and the call
    think_begin: int = ABSENT  # opens reasoning
    think_end: int = ABSENT  # closes it
    turn_end: int = ABSENT  # ends the assistant's turn
    text_end: int = ABSENT  # the tokenizer's end-of-sequence token, on which servers stop too

    @property
    def stop_ids(self) -> tuple[int, int]:
        """The ids that end a completion."""
        return (self.turn_end, self.text_end)

    @property
    def argument_markers(self) -> frozenset[int]:
        """The markers that a call's arguments may contain."""
        return frozenset(getattr(self, name) for name in self.argument_fields)

    @property
    def engine_stop(self) -> int:
        """The stop token given to an engine: masks allow it if the arguments may end. Arguments never contain it."""
        return self.text_end if "call_end" in self.argument_fields else self.call_end

    @property
    def has_long_transitions(self) -> bool:
        """True if some transition has several tokens: inside it masks are needed even if the text is free."""
        return any(len(each.pieces) > 1 for found in self.transitions.values() for each in found)

    @property
    def writes_ids(self) -> bool:
        """True if a call header is the call id of the API; else the server makes up the ids."""
        return self.header_begin == self.call_id_prefix

    def located_in(self, special_tokens: Mapping[str, int]) -> Self:
        """This format with its markers' ids in a vocabulary; ``special_tokens``: text -> id.

        Raises:
            FormatMismatch: A marker is not a single special token there.
        """
        if absent := self.missing_in(special_tokens):
            problem = f"the vocabulary has no single special token for {', '.join(absent)}"
            raise FormatMismatch(problem, "tokenizer", f"Use the tokenizer of a {self.name} checkpoint")
        ids = {name: special_tokens.get(text, ABSENT) for name, text in self.marker_texts.items()}
        return replace(self, **ids)  # type: ignore[arg-type] # ids of markers only

    def missing_in(self, special_tokens: Mapping[str, int]) -> tuple[str, ...]:
        """The texts of required markers that are not single special tokens of a vocabulary."""
        required = (text for name, text in self.marker_texts.items() if name not in self.optional_markers)
        return tuple(dict.fromkeys(text for text in required if text not in special_tokens))

    def located(self, pieces: tuple[str | bytes, ...]) -> tuple[int | bytes, ...] | None:
        """A transition's pieces with the ids of its markers; None if the vocabulary lacks one."""
        found = tuple(piece if isinstance(piece, bytes) else int(getattr(self, piece)) for piece in pieces)
        return None if ABSENT in found else found

    def call_index(self, calls_before: int, call: int) -> int:
        """The index of a turn's ``call``-th call (from 0), after ``calls_before`` calls in the dialog's history."""
        return self.first_index + call + (calls_before if self.counts_dialog else 0)

    def header_stem(self, name: str) -> str:
        """A function's call header up to the index, such as ``functions.NAME:``.

        Raises:
            InvalidRequest: The function cannot be called in this format.
        """
        self._check_name(name)
        return f"{self.header_begin}{self.escape_name(name)}{self.header_index}"

    def call_id(self, name: str, index: int) -> str:
        """The id of a call, such as ``functions.NAME:INDEX``; INDEX counts the dialog's calls before this one.

        Raises:
            InvalidRequest: The name cannot be part of a call id, or the index is negative.
        """
        self._check_name(name)
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
        """The reason why a function of this name cannot be called in this format; empty if it can be called."""
        if not name:
            return "is empty"
        if special := self.special_pattern.search(name):
            return f"contains the text of a special token, {special[0]!r}"
        # No printable character has these categories; this faster test comes first, since every tool's name is checked.
        if not name.isprintable() and any(unicodedata.category(character) in {"Cc", "Cs"} for character in name):
            return "contains a control character or a lone surrogate"
        return ""

    def _check_name(self, name: str) -> None:
        if problem := self.name_problem(name):
            raise InvalidRequest(f"the name {name[:80]!r} {problem}", "name", "Rename the function")
