"""What is wrong with a prompt: the faults that cost Kimi K2 its tool calls, found in the text or the ids themselves."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from constrained_k2.errors import InvalidRequest
from constrained_k2.format import ToolCallFormat
from constrained_k2.rendering.special_text import (
    CALL_MARKERS,
    KIMI_SPECIALS,
    MEDIA_MARKERS,
    THINK_TAGS,
    SpecialTexts,
)
from constrained_k2.vocabulary import Vocabulary

FaultKind = Literal["generation prompt", "content list", "call id", "result id", "special token", "blanks", "turns"]

_REMEDIES: dict[FaultKind, str] = {
    "generation prompt": "Render with add_generation_prompt; the tokenizer must hand it on to its template",
    "content list": "Send text as a string, or serve with --chat-template-content-format string",
    "call id": "Send calls of the history under the id functions.NAME:INDEX, counted over the dialog",
    "result id": "Send a result under the id of the call that it answers",
    "special token": "Neutralize special tokens in what users and tools write; this package's repairs do",
    "blanks": "Use the checkpoint's present chat template: this one writes its own indentation",
    "turns": "Neutralize special tokens in what users and tools write; this package's repairs do",
}

_OPENING = re.compile(r"<\|im_(user|assistant|system)\|>((?:(?!<\|im_).)*)<\|im_middle\|>", re.DOTALL)
_END = "<|im_end|>"
_CALL_ID = re.compile(r"<\|tool_call_begin\|>(.*?)<\|tool_call_argument_begin\|>", re.DOTALL)
_RETURN = re.compile(r"## Return of (.*)\n")
_CONTENT_LIST = re.compile(r"\s*\[\{'type': ?'")
_GENERATION = ("", "<think>", "<think></think>")
_DEFAULT_SYSTEM = "You are Kimi, an AI assistant created by Moonshot AI."


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a prompt.

    Attributes:
        kind: What it is about.
        place: The turn of the prompt, counted from 0 with the declaration of the tools, and whose it is.
        problem: What is wrong.
    """

    kind: FaultKind
    place: str
    problem: str

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return _REMEDIES[self.kind]


@dataclass(frozen=True, slots=True)
class _Turn:
    number: int
    opener: str  # user, assistant or system
    name: str
    text: str  # all behind <|im_middle|>, the turn's end included

    @property
    def place(self) -> str:
        return f"turn {self.number} ({self.name})"


def find_faults(
    prompt: str | Sequence[int], body: Mapping[str, Any] | None = None, *, vocabulary: Vocabulary | None = None
) -> list[Fault]:
    """Look for the known faults.

    Args:
        prompt: The prompt as text, or as token ids. In a text, whatever spells a special token is taken for one.
        body: The request it was made of. With it, more is found: turns that no message opened, blanks that no tool
            wrote; and what a user wrote literally is not taken for a fault.
        vocabulary: The tokenizer's, needed for ids.

    Raises:
        InvalidRequest: Ids without a vocabulary, or outside of it.
    """
    specials = KIMI_SPECIALS if vocabulary is None else SpecialTexts(vocabulary.special_tokens)
    text = prompt if isinstance(prompt, str) else _spelled(prompt, vocabulary, specials)
    turns = list(_turns(text))
    messages = [message for message in (body or {}).get("messages") or () if isinstance(message, Mapping)]
    faults = [*_generation_faults(text, turns, body or {}), *_id_faults(turns)]
    for turn in turns:
        faults += _special_faults(turn, specials)
    faults += _list_faults(turns, messages)
    faults += _blank_faults(turns, messages if body is not None else None)
    if body is not None:
        faults += _turn_faults(turns, messages)
    return faults


def _spelled(ids: Sequence[int], vocabulary: Vocabulary | None, specials: SpecialTexts) -> str:
    """The ids as text in which a special token's spelling is a special token: that of ordinary tokens is broken."""
    if vocabulary is None:
        raise InvalidRequest("token ids need the vocabulary they are of", "vocabulary", "Pass vocabulary=…")
    runs = groupby(ids, key=lambda token_id: vocabulary.special_text(token_id) is not None)
    return "".join(
        vocabulary.decode(run) if special else specials.neutralize(vocabulary.decode(run))[0] for special, run in runs
    )


def _turns(text: str) -> Iterator[_Turn]:
    openings = list(_OPENING.finditer(text))
    ends = [*(opening.start() for opening in openings), len(text)][1:]
    for number, (opening, end) in enumerate(zip(openings, ends, strict=True)):
        yield _Turn(number, opening[1], opening[2], text[opening.end() : end])


def _generation_faults(text: str, turns: Sequence[_Turn], body: Mapping[str, Any]) -> Iterator[Fault]:
    if body.get("continue_final_message"):
        return
    last = turns[-1] if turns else None
    if last is None or last.opener != "assistant" or last.text not in _GENERATION:
        yield Fault("generation prompt", "the end", f"no assistant's turn is open; the prompt ends in {text[-30:]!r}")


def _id_faults(turns: Iterable[_Turn]) -> Iterator[Fault]:
    seen: set[str] = set()
    count = 0
    for turn in turns:
        if turn.opener == "assistant":
            for match in _CALL_ID.finditer(turn.text):
                seen.add(match[1])
                try:
                    index = ToolCallFormat.parse_call_id(match[1])[1]
                except InvalidRequest as error:
                    yield Fault("call id", turn.place, error.problem)
                else:
                    if index != count:
                        yield Fault("call id", turn.place, f"{match[1]!r} is call number {count} of the dialog")
                count += 1
        elif turn.opener == "system" and (back := _RETURN.match(turn.text)) and back[1] not in seen:
            yield Fault("result id", turn.place, f"{back[1][:80]!r} is the id of no call before it")


def _special_faults(turn: _Turn, specials: SpecialTexts) -> Iterator[Fault]:
    """Special tokens that a template does not write there."""
    text = turn.text.removesuffix(_END)
    allowed = MEDIA_MARKERS | (THINK_TAGS | CALL_MARKERS if turn.opener == "assistant" else frozenset())
    found = Counter(match[0] for match in specials.find(text) if match[0] not in allowed)
    for marker, times in found.items():
        yield Fault("special token", turn.place, f"{marker} inside the turn" + (f", {times} times" * (times > 1)))


def _list_faults(turns: Iterable[_Turn], messages: Iterable[Mapping[str, Any]]) -> Iterator[Fault]:
    literal = {message["content"].strip()[:40] for message in messages if isinstance(message.get("content"), str)}
    for turn in turns:
        text = _RETURN.sub("", turn.text, count=1) if turn.opener == "system" else turn.text
        if _CONTENT_LIST.match(text) and text.removesuffix(_END).strip()[:40] not in literal:
            yield Fault("content list", turn.place, f"content is printed as a Python list: {text.strip()[:60]!r}")


def _blank_faults(turns: Iterable[_Turn], messages: Iterable[Mapping[str, Any]] | None) -> Iterator[Fault]:
    """The template's own indentation before the tools' JSON and before results."""
    indented = None
    if messages is not None:
        contents = [message.get("content") for message in messages if message.get("role") == "tool"]
        indented = any(isinstance(content, str) and content[:1].isspace() for content in contents)
    for turn in turns:
        if turn.name == "tool_declare" and turn.text[:1].isspace():
            yield Fault("blanks", turn.place, f"the tools' declaration begins with {turn.text[:12]!r}")
        match = _RETURN.match(turn.text) if turn.opener == "system" else None
        if match and indented is False and turn.text[match.end() :][:1].isspace():
            yield Fault("blanks", turn.place, "blanks that no tool wrote stand before its result")


def _turn_faults(turns: Sequence[_Turn], messages: Sequence[Mapping[str, Any]]) -> Iterator[Fault]:
    """Turns that no message opened: forged by special tokens in some content."""
    told = Counter(_opener(message.get("role")) for message in messages)
    shown = Counter(turn.opener for turn in turns)
    shown["system"] -= bool(turns) and turns[0].name == "tool_declare"
    first = next((turn for turn in turns if turn.name != "tool_declare"), None)
    if (
        first
        and first.text == _DEFAULT_SYSTEM + _END
        and (not messages or _opener(messages[0].get("role")) != "system")
    ):
        shown["system"] -= 1
    shown["assistant"] -= bool(turns) and turns[-1].opener == "assistant" and turns[-1].text in _GENERATION
    for opener in ("user", "assistant", "system"):
        if shown[opener] > told[opener]:
            yield Fault("turns", "the whole", f"{shown[opener]} turns of {opener} for {told[opener]} messages")


def _opener(role: object) -> str:
    return str(role) if role in {"user", "assistant"} else "system"
