"""Checks a Kimi K3 prompt for faults: misplaced tags, and a missing generation prompt."""

from collections.abc import Mapping, Sequence
from typing import Any

from constrained_k2.formats.kimi_k3 import (
    ARGUMENT,
    CALL,
    CLOSE,
    JSON,
    MEDIA_BEGIN,
    MEDIA_CONTENT,
    MEDIA_END,
    MEDIA_PAD,
    MESSAGE,
    MESSAGE_END,
    OPEN,
    RESPONSE,
    SEPARATOR,
    THINK,
    TOOLS,
)
from constrained_k2.prompts.fault import Fault
from constrained_k2.vocabulary.vocabulary import Vocabulary

_INNER: Mapping[tuple[str, ...], tuple[str, ...]] = {
    (): (MESSAGE,),
    (MESSAGE,): (THINK, RESPONSE, TOOLS),
    (MESSAGE, TOOLS): (CALL,),
    (MESSAGE, TOOLS, CALL): (ARGUMENT, JSON),
}
"""Open tags -> the tags that may be opened in them, in messages of the assistant."""

_MEDIA = frozenset({MEDIA_BEGIN, MEDIA_CONTENT, MEDIA_END, MEDIA_PAD})
_ASSISTANT = ' role="assistant"'


def find_tag_faults(ids: Sequence[int], body: Mapping[str, Any], vocabulary: Vocabulary) -> list[Fault]:
    """Find the faults of a prompt; with the ``messages`` of ``body`` also a wrong number of messages in the prompt."""
    walk = _Walk(vocabulary)
    at = 0
    while at < len(ids):
        at = walk.step(ids, at)
    if walk.is_open and body.get("add_generation_prompt") is not False and not walk.awaits_answer:
        walk.fault("generation prompt", "the prompt does not end in an open channel of an assistant message")
    elif not walk.is_open and body.get("add_generation_prompt") is not False:
        walk.fault("generation prompt", "the prompt ends in no open message")
    messages = body.get("messages")
    if isinstance(messages, list | tuple):
        expected = sum(not (isinstance(message, Mapping) and message.get("tools")) for message in messages)
        found = walk.messages - walk.is_open
        if found != expected:
            walk.fault("turns", f"the prompt has {found} messages of the dialog, the request {expected}")
    return walk.faults


class _Walk:
    """Reads a prompt tag by tag."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.faults: list[Fault] = []
        self.messages = 0  # messages of the dialog; the encoder's own ones have a type
        self.awaits_answer = False  # the last token opened a channel of the assistant
        self._vocabulary = vocabulary
        self._number = -1
        self._header = ""  # attributes of the last message
        self._open: tuple[str, ...] = ()  # tags, the outermost first

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def fault(self, kind: Any, problem: str) -> None:
        role = self._header.partition('role="')[2].partition('"')[0]
        self.faults.append(Fault(kind, f"message {max(self._number, 0)} ({role or 'none'})", problem))

    def step(self, ids: Sequence[int], at: int) -> int:
        """Read a tag, a text or another special token, and return where the next one begins."""
        special = self._vocabulary.special_text(ids[at])
        self.awaits_answer = False
        if special is None:
            end = self._end_of_text(ids, at)
            if self._open in _INNER and not (len(self._open) == 1 and _ASSISTANT not in self._header):
                self.fault(
                    "tags", f"the text {self._vocabulary.decode(ids[at : min(end, at + 20)])[:60]!r} is between tags"
                )
            return end
        if special in (OPEN, CLOSE):
            end = self._end_of_text(ids, at + 1)
            header = self._vocabulary.decode(ids[at + 1 : end])
            if end == len(ids) or self._vocabulary.special_text(ids[end]) != SEPARATOR:
                self.fault("tags", f"{special}{header[:60]} has no {SEPARATOR}")
                return end
            (self._opened if special == OPEN else self._closed)(header)
            return end + 1
        if special == MESSAGE_END:
            if self._open:
                self.fault("tags", f"{special} before the end of the message")
                self._open = ()
        elif special not in _MEDIA:
            self.fault("special token", f"{special} inside the prompt")
        return at + 1

    def _opened(self, header: str) -> None:
        name, blank, attributes = header.partition(" ")
        if name == MESSAGE and not self._open:
            self._number += 1
            self._header = blank + attributes
            self.messages += ' type="' not in self._header
        elif name not in _INNER.get(self._open, ()) or not self._header.startswith(_ASSISTANT):
            self.fault("tags", f"{OPEN}{header[:60]}{SEPARATOR} inside {'/'.join(self._open) or 'no message'}")
            return
        self._open += (name,)
        self.awaits_answer = name in (THINK, RESPONSE)

    def _closed(self, name: str) -> None:
        if self._open[-1:] == (name,):
            self._open = self._open[:-1]
        else:
            self.fault("tags", f"{CLOSE}{name[:60]}{SEPARATOR} inside {'/'.join(self._open) or 'no message'}")

    def _end_of_text(self, ids: Sequence[int], at: int) -> int:
        while at < len(ids) and self._vocabulary.special_text(ids[at]) is None:
            at += 1
        return at
