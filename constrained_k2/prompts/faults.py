"""Checks a rendered prompt for known faults that make Kimi K2 fail to call tools."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, groupby
from typing import Any, NamedTuple

from constrained_k2.errors import InvalidRequest
from constrained_k2.formats import kimi_k2
from constrained_k2.formats.kimi_k2 import KIMI_K2, TURN_END
from constrained_k2.prompts.fault import Fault
from constrained_k2.prompts.pairing import folded
from constrained_k2.prompts.special_text import CALL_MARKERS, KIMI_SPECIALS, MEDIA_MARKERS, THINK_TAGS, SpecialTexts
from constrained_k2.prompts.xtml.faults import find_tag_faults
from constrained_k2.request.values import array_at, object_at
from constrained_k2.vocabulary.vocabulary import Vocabulary

_OPENING = re.compile(kimi_k2.TURN_OPENING, re.DOTALL)
# An id contains no marker: without that rule, many calls without arguments would take quadratic time.
_BEGIN, _ARGUMENT = re.escape(kimi_k2.CALL_BEGIN), re.escape(kimi_k2.ARGUMENT_BEGIN)
_CALL_ID = re.compile(f"{_BEGIN}((?:(?!{_BEGIN}).)*?){_ARGUMENT}", re.DOTALL)
_RETURN = re.compile(r"## Return of (.*)\n")
_CONTENT_LIST = re.compile(r"\s*\[\{'type': ?'")
_GENERATION = ("", kimi_k2.THINK_BEGIN, kimi_k2.THINK_BEGIN + kimi_k2.THINK_END)
_DEFAULT_SYSTEM = "You are Kimi, an AI assistant created by Moonshot AI."


class _Turn(NamedTuple):
    number: int
    opener: str  # user, assistant or system
    name: str
    text: str  # after the turn's opening, with its end

    @property
    def location(self) -> str:
        return f"turn {self.number} ({self.name})"


def find_faults(
    prompt: str | Sequence[int], body: Mapping[str, Any] | None = None, *, vocabulary: Vocabulary | None = None
) -> list[Fault]:
    """Find the known faults of a prompt, which is token ids or text. In text, spelled special tokens count as tokens.

    With ``body``, the request that the prompt was rendered from, turns that no message opened and spaces that no tool
    wrote are found too, and literal user text does not count as a fault. Token ids need their vocabulary. Prompts of
    Kimi K3 must be token ids: their text does not show which markers are special tokens.
    """
    if vocabulary is not None and vocabulary.format.argument_encoding == "xtml":
        if isinstance(prompt, str):
            raise InvalidRequest("a prompt of Kimi K3 must be token ids, not text", "prompt")
        return find_tag_faults(prompt, {} if body is None else object_at("body", body), vocabulary)
    specials = KIMI_SPECIALS if vocabulary is None else SpecialTexts(vocabulary.special_tokens)
    text = prompt if isinstance(prompt, str) else _spelled(prompt, vocabulary, specials)
    turns = list(_turns(text))
    body_fields = {} if body is None else object_at("body", body)
    given = array_at("messages", body_fields.get("messages") or ())
    messages = [message for message in given if isinstance(message, Mapping)]
    return [
        *_generation_faults(text, turns, body_fields),
        *_id_faults(turns),
        *chain.from_iterable(_special_faults(turn, specials) for turn in turns),
        *_list_faults(turns, messages),
        *_blank_faults(turns, messages if body is not None else None),
        *(_turn_faults(turns, messages) if body is not None else ()),
    ]


def _spelled(ids: Sequence[int], vocabulary: Vocabulary | None, specials: SpecialTexts) -> str:
    """Decode ids so that only special tokens appear as such: markers made of ordinary tokens are neutralized."""
    if vocabulary is None:
        raise InvalidRequest("token ids need their vocabulary", "vocabulary", "Pass vocabulary=…")
    runs = groupby(ids, key=lambda token_id: vocabulary.special_text(token_id) is not None)
    texts = ((special, vocabulary.decode(run)) for special, run in runs)
    return "".join(text if special else specials.neutralize(text)[0] for special, text in texts)


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
        yield Fault("generation prompt", "the end", f"the prompt ends in {text[-30:]!r}, not in an open assistant turn")


def _id_faults(turns: Iterable[_Turn]) -> Iterator[Fault]:
    unanswered = Counter[str]()  # the ids of calls
    spelled: dict[str, str] = {}  # folded id -> the id of the latest such call
    numbers = count()
    for turn in turns:
        for call_id in _CALL_ID.findall(turn.text) if turn.opener == "assistant" else ():
            unanswered[call_id] += 1
            spelled[folded(call_id)] = call_id
            number = next(numbers)
            try:
                if KIMI_K2.parse_call_id(call_id)[1] != number:
                    yield Fault("call id", turn.location, f"{call_id!r} is call number {number} of the dialog")
            except InvalidRequest as error:
                yield Fault("call id", turn.location, error.problem)
        if turn.opener == "system" and (back := _RETURN.match(turn.text)):
            given, location = back[1], turn.location
            if unanswered[given] > 0:
                unanswered[given] -= 1
            elif given in unanswered:
                yield Fault("result id", location, f"the call {given[:80]!r} has a result already")
            else:
                like = spelled.get(folded(given))
                but = "" if like is None else f", but one has {like[:80]!r}"
                yield Fault("result id", location, f"no earlier call has the id {given[:80]!r}{but}")


def _special_faults(turn: _Turn, specials: SpecialTexts) -> Iterator[Fault]:
    """Find special tokens inside a turn that no template writes there."""
    text = turn.text.removesuffix(TURN_END)
    allowed = MEDIA_MARKERS | (THINK_TAGS | CALL_MARKERS if turn.opener == "assistant" else frozenset())
    found = Counter(match[0] for match in specials.find(text) if match[0] not in allowed)
    for marker, times in found.items():
        yield Fault("special token", turn.location, f"{marker} inside the turn" + (f", {times} times" * (times > 1)))


def _list_faults(turns: Iterable[_Turn], messages: Iterable[Mapping[str, Any]]) -> Iterator[Fault]:
    literal = {message["content"].strip()[:40] for message in messages if isinstance(message.get("content"), str)}
    for turn in turns:
        text = _RETURN.sub("", turn.text, count=1) if turn.opener == "system" else turn.text
        if _CONTENT_LIST.match(text) and text.removesuffix(TURN_END).strip()[:40] not in literal:
            yield Fault("content list", turn.location, f"content is printed as a Python list: {text.strip()[:60]!r}")


def _blank_faults(turns: Iterable[_Turn], messages: Iterable[Mapping[str, Any]] | None) -> Iterator[Fault]:
    """Find indentation that the template adds before the tools' JSON and before results."""
    contents = [message.get("content") for message in messages or () if message.get("role") == "tool"]
    texts = (content for content in contents if isinstance(content, str))
    check_results = messages is not None and not any(text[:1].isspace() for text in texts)
    for turn in turns:
        if turn.name == "tool_declare" and turn.text[:1].isspace():
            yield Fault("blanks", turn.location, f"the tools' declaration begins with {turn.text[:12]!r}")
        match = _RETURN.match(turn.text) if turn.opener == "system" and check_results else None
        if match and turn.text[match.end() :][:1].isspace():
            yield Fault("blanks", turn.location, "the result begins with spaces that no tool wrote")


def _turn_faults(turns: Sequence[_Turn], messages: Sequence[Mapping[str, Any]]) -> Iterator[Fault]:
    """Find turns that no message opened: special tokens in some content forged them."""
    sent = Counter(_opener(message.get("role")) for message in messages)
    shown = Counter(turn.opener for turn in turns)
    shown["system"] -= bool(turns) and turns[0].name == "tool_declare"
    first = next((turn for turn in turns if turn.name != "tool_declare"), None)
    if first and first.text == _DEFAULT_SYSTEM + TURN_END:
        shown["system"] -= not messages or _opener(messages[0].get("role")) != "system"
    shown["assistant"] -= bool(turns) and turns[-1].opener == "assistant" and turns[-1].text in _GENERATION
    for opener in ("user", "assistant", "system"):
        if shown[opener] > sent[opener]:
            yield Fault("turns", "the whole", f"{shown[opener]} {opener} turns for {sent[opener]} messages")


def _opener(role: object) -> str:
    return role if isinstance(role, str) and role in {"user", "assistant"} else "system"
