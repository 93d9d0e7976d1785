"""Searches a prompt's end for values to draft: a key's latest value, names, ids, numbers and dates.

A prompt is read once per request, at the first look-up. The cost is bounded: only a limited length at the prompt's end
is read, and every pattern takes linear time.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from typing import NamedTuple

from constrained_k2.formats.base import ABSENT
from constrained_k2.formats.kimi_k2 import ASSISTANT, MIDDLE, SYSTEM, USER
from constrained_k2.formats.kimi_k3 import BEFORE_KEY, MESSAGE
from constrained_k2.turn.cursors.arguments_cursor import SPECIAL
from constrained_k2.turn.cursors.json_cursor import unspelled
from constrained_k2.vocabulary.vocabulary import Vocabulary

_MAX_TOKENS = 16_384  # tokens read at the prompt's end, in about 2 ms
MAX_BYTES = 65_536
_MAX_MESSAGES = 2  # number of latest messages that are searched for spans
_MAX_MESSAGE = 4096  # characters searched at a message's end
MAX_SPANS = 64
MAX_VALUE = 128  # max characters of a drafted value

# Characters that replace the special tokens before a header, and the one after it.
_HEADER, _CONTENT = "\2", "\1"
_DECLARATIONS = ("tool_declare", f'{MESSAGE} role="system" type=')  # headers of the server's own messages
_SYSTEM = ("system", f'{MESSAGE} role="system"')

_RESULT = re.compile(r"## Return of [^\n]{0,256}\n")  # chat templates write this before a result
_KEY = re.compile(rf'{re.escape(BEFORE_KEY)}([^"]{{1,64}})"')
_MEMBER = re.compile(
    r'"([^"\\\n]{1,64})"\s{0,4}:\s{0,4}(?:"((?:[^"\\\0]|\\.){1,128})"|(-?\d[\d.eE+-]{0,30})(?=[,}\]\s]))'
)
_CAPITALIZED = r"[^\W\d_a-z][\w'-]{0,63}"
_PLAIN = r"[^\s\0\"`,;()<>{}\[\]]{0,64}"  # bounded, since a match may begin at every character of a word
_SPAN = re.compile(
    r'(?<![=\w])["`]([^"`\n\0]{1,128})["`](?!\s?:)'  # quoted text, except JSON keys
    rf"|(?<![^\s(\"'])((?:\d{{1,9}} )?{_CAPITALIZED}(?: {_CAPITALIZED}){{0,7}}"  # names, with the number of a house
    rf"|{_PLAIN}[\d@/_\\]{_PLAIN})"  # numbers, dates, ids, addresses, paths
)
_WORD = re.compile(r"[\w-]+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d.*")
_SENTENCE_ENDS = ".!?:\n"


class Span(NamedTuple):
    """A part of a message that is likely to become a value."""

    text: str
    shape: str
    age: int  # 0 if it is in the latest message, 1 if in the message before, …


class PromptText:
    """The end of one prompt as text.

    Attributes:
        text: The contents of the conversation's messages and calls, with :data:`SPECIAL` between them.
        values: The latest value of each key, in calls, results and JSON texts.
        spans: The likely values in the latest messages: latest message first, in text order within a message.
    """

    def __init__(self, ids: Sequence[int], vocabulary: Vocabulary) -> None:
        self.text, self.values = "", dict[str, str]()
        self._messages: list[str] = []
        contents: list[str] = []
        for part in _text_of(ids, vocabulary).split(_HEADER):
            header, begun, content = part.partition(_CONTENT)
            if not begun:
                header, content = "", part
            if header.startswith(_DECLARATIONS):
                continue
            contents.append(content)
            for found in _MEMBER.finditer(content):
                self.values[found[1]] = unspelled(found[2]) or "" if found[2] else found[3]
            if key := _KEY.match(header):
                if len(content) <= MAX_VALUE:
                    self.values[key[1]] = content
            elif header not in _SYSTEM and " " in (message := _RESULT.sub("", content.partition(SPECIAL)[0], 1)):
                self._messages.append(message[-_MAX_MESSAGE:])
        self._messages = self._messages[: -_MAX_MESSAGES - 1 : -1]
        self.text = SPECIAL.join(contents)
        self._reversed = self.text[::-1]
        self.spans = list(islice(self._spans(), MAX_SPANS))

    def latest(self, wanted: str, count: int) -> Iterator[int]:
        """The end offsets of the latest ``count`` occurrences of a text, last occurrence first."""
        at, wanted = -1, wanted[::-1]
        for _ in range(count):
            at = self._reversed.find(wanted, at + 1)
            if at < 0:
                return
            yield len(self.text) - at

    @property
    def newest(self) -> str:
        """The end of the latest message."""
        return next(iter(self._messages), "")

    def mentions(self, text: str) -> bool:
        """True if the latest messages contain a text as whole words, ignoring case."""
        return f" {text.lower()} " in self._words

    @cached_property
    def _words(self) -> str:
        return f" {' '.join(_WORD.findall(' '.join(self._messages).lower()))} "

    def _spans(self) -> Iterator[Span]:
        for age, message in enumerate(self._messages):
            for found in _SPAN.finditer(message):
                text = found[1] or found[2].rstrip(".:!?'")
                if not found[1] and text.isascii() and message[: found.start()].rstrip(" ")[-1:] in _SENTENCE_ENDS:
                    text = _without_first_word(text)
                if 1 < len(text) <= MAX_VALUE or text.isdigit():
                    yield Span(text, shape_of(text), age)


def _text_of(ids: Sequence[int], vocabulary: Vocabulary) -> str:
    """The text of the end of a prompt, with a character for each special token; empty if an id is unknown."""
    try:
        raw = b"".join(map(_texts(vocabulary).__getitem__, ids[-_MAX_TOKENS:]))
    except IndexError:
        return ""
    return raw[-MAX_BYTES:].decode(errors="ignore")


@lru_cache(maxsize=2)  # one per server
def _texts(vocabulary: Vocabulary) -> list[bytes]:
    """The bytes of every ordinary token, and the character of every special one."""
    markers = vocabulary.format
    if markers.argument_encoding == "xtml":
        headers, content = [markers.call_begin, markers.call_end], markers.argument_begin
    else:
        special = vocabulary.special_tokens
        headers, content = (
            [special.get(text, ABSENT) for text in (USER, ASSISTANT, SYSTEM)],
            special.get(MIDDLE, ABSENT),
        )
    texts = [vocabulary.ordinary_bytes(token_id) or SPECIAL.encode() for token_id in range(vocabulary.size)]
    for token_id, text in (*((header, _HEADER) for header in headers), (content, _CONTENT)):
        if token_id != ABSENT:
            texts[token_id] = text.encode()
    return texts


def _without_first_word(text: str) -> str:
    """Drop a span's first word if it is ordinary: at the beginning of a sentence its capital says nothing."""
    first, _, rest = text.partition(" ")
    return rest if first.replace("'", "").isalpha() and not (first.isupper() and len(first) > 1) else text


def shape_of(text: str) -> str:
    """The kind of a text, such as a number or a date, by its characters."""
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
