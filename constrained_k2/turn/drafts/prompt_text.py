"""The text at the end of a prompt, prepared for look-ups: values by their key, spans that are likely values.

It is built once per request, at its first look-up. Its bounds hold for any prompt: a part of a bounded length is read,
and every pattern reads it in linear time.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from constrained_k2.turn.drafts.xtml.tags import BEFORE_KEY, BEFORE_TYPE
from constrained_k2.vocabulary.vocabulary import Vocabulary

_MAX_TOKENS = 16_384  # of the prompt's end, about 5 ms
_MAX_BYTES = 65_536
_MAX_SEGMENTS = 2  # in which spans are looked for, about a message each
_MAX_SEGMENT = 4096  # characters of one, its end
_MAX_SPANS = 64

SPECIAL = "\0"
"""Stands for a special token. No JSON string and no file name contains it unescaped."""

_MEMBER = re.compile(
    r'"([^"\\\n]{1,64})"\s{0,4}:\s{0,4}(?:"((?:[^"\\\0]|\\.){1,256})"|(-?\d[\d.eE+-]{0,30})(?=[,}\]\s]))'
)
_BLOCK = re.compile(
    rf'\0{re.escape(BEFORE_KEY)}([^"\0]{{1,64}})"{re.escape(BEFORE_TYPE)}[a-z]{{1,16}}"\0([^\0]{{1,256}})\0'
)
_CAPITALIZED = r"[^\W\d_a-z][\w'’-]*"
_SPAN = re.compile(
    r'(?<![=\w])["“`]([^"“”`\n\0]{1,128})["”`]'  # quoted
    rf"|(?<![^\s(\"'“:])((?:\d+ )?{_CAPITALIZED}(?: {_CAPITALIZED})*"  # names, with the number of a house
    r"|[^\s\0\"“”`,;()<>{}\[\]]*[\d@/_\\][^\s\0\"“”`,;()<>{}\[\]]*)"  # numbers, dates, ids, addresses, paths
)
_WORD = re.compile(r"[\w-]+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d.*")
_SENTENCE_ENDS = ".!?:\n\0"


class Span(NamedTuple):
    """A part of a message that is likely to become a value."""

    text: str
    shape: str


class PromptText:
    """The end of one prompt as text."""

    def __init__(self, ids: Sequence[int], vocabulary: Vocabulary) -> None:
        special, token_bytes = SPECIAL.encode(), vocabulary.ordinary_bytes
        raw = b"".join([token_bytes(token_id) or special for token_id in ids[-_MAX_TOKENS:]])
        self.text = raw[-_MAX_BYTES:].decode(errors="ignore")
        self._reversed = self.text[::-1]
        self.values = dict[str, str]()
        """The latest value of each key, in calls, results and JSON texts: strings as in JSON, numbers as written."""
        for found in _MEMBER.finditer(self.text):
            self.values[found[1]] = found[2] or found[3]
        for found in _BLOCK.finditer(self.text):
            self.values[found[1]] = found[2]
        self.spans = list(self._spans())

    def latest(self, wanted: str, count: int) -> Iterator[int]:
        """The ends of the latest ``count`` occurrences of a text, the last one first."""
        at, wanted = -1, wanted[::-1]
        for _ in range(count):
            at = self._reversed.find(wanted, at + 1)
            if at < 0:
                return
            yield len(self.text) - at

    def mentions(self, text: str) -> bool:
        """True if the latest messages contain a text as words, in upper or lower case."""
        return f" {text.lower()} " in self._words

    @cached_property
    def _words(self) -> str:
        latest = " ".join(islice(self._messages(), _MAX_SEGMENTS))
        return f" {' '.join(_WORD.findall(latest.lower()))} "

    def _messages(self) -> Iterator[str]:
        """The ends of messages, the latest first."""
        for segment in reversed(self.text.split(SPECIAL)):
            if _is_message(segment):
                yield segment[-_MAX_SEGMENT:]

    def _spans(self) -> Iterator[Span]:
        """The spans of the latest messages, each message's in their order."""
        left = _MAX_SPANS
        for part in islice(self._messages(), _MAX_SEGMENTS):
            for found in _SPAN.finditer(part):
                text = found[1] or found[2].rstrip(".:!?'")
                first = part[: found.start()].rstrip(" ")[-1:] in _SENTENCE_ENDS
                if not text or (first and not found[1] and text.isalpha() and not text.isupper()):
                    continue  # the first word of a sentence
                left -= 1
                if left < 0:
                    return
                yield Span(text, shape_of(text))


def _is_message(segment: str) -> bool:
    """True for a text with several words that is not JSON, whose values are known by their keys."""
    return " " in segment and segment.lstrip()[:1] not in {"{", "["} and BEFORE_TYPE not in segment


def shape_of(text: str) -> str:
    """The kind of a text by its characters."""
    if _NUMBER.fullmatch(text):
        return "number"
    if _DATE.fullmatch(text):
        return "date"
    if "@" in text:
        return "address"
    if "/" in text or "\\" in text:
        return "path"
    if any(map(str.isdigit, text)):
        return "street" if " " in text else "code"
    if text.isupper():
        return "letters"
    return "name" if text[:1].isupper() else "words"
