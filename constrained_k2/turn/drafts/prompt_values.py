"""Drafts argument values from the prompt: names, ids, numbers, paths and dates of the conversation.

A started value continues like the latest text in the prompt that has the same prefix (for a long value: that contains
its last characters). A new value is a span of the latest messages that this turn has not written yet. Its kind
(number, date, path, …) must be the one that the schema's format, the key's former value or the key's name suggests, if
any of them suggests one. If there is no such span, the key's former value is drafted. The grammar then
accepts or rejects the draft.

{"date": "     with the format "date", after "from 2026-05-01 on" in the latest message: 2026-05-01
"""

import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from constrained_k2.turn.cursors.arguments_cursor import SPECIAL
from constrained_k2.turn.cursors.schema_view import SchemaView
from constrained_k2.turn.drafts.prompt_text import PromptText, shape_of
from constrained_k2.vocabulary.vocabulary import Vocabulary

_MAX_BEGUN = 32  # a value is looked up by at most this many last characters of its prefix
_MAX_REST = 128  # max characters of a guess
_OCCURRENCES = 8
_QUOTES = {'"': '"', "“": "”", "`": "`"}
_STOPS = re.compile(r'[\0\n"“”`;\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f]|[,:.!?)\]}](?=[\s\0"\')\]}]|\Z)')
_PRECISE = re.compile(r"[\d@/_\\]")  # a word with such a character is a value by itself
_REST_OF_NUMBER = re.compile(r"(?:\d|\.(?=\d))*")
_SHAPES = {"date": "date", "date-time": "date", "email": "address", "uri": "path", "uuid": "code"}
_NEEDS_HINT = {"number", "date", "address", "path"}  # shapes that are guessed only if schema or key suggests them
_NAMES = {"date": "date", "mail": "address", "path": "path", "file": "path", "url": "path"}


class Guess(NamedTuple):
    """A text that may continue a value, and True if the value ends after it."""

    text: str
    ends: bool


NO_GUESS = Guess("", ends=False)


class PromptValues:
    """Looks up values of one request's arguments in its prompt, which is read at the first look-up."""

    def __init__(self, prompt: Sequence[int], vocabulary: Vocabulary) -> None:
        self._prompt, self._vocabulary = prompt, vocabulary

    @cached_property
    def _text(self) -> PromptText:
        return PromptText(self._prompt, self._vocabulary)

    def rest_of_string(self, begun: str, written: str) -> Guess:
        """The suffix of a started string; ``begun`` is its prefix, or the last characters of a long prefix."""
        for text, _, _ in self._text.spans:
            if text.startswith(begun) and not _has_words(written, text):
                return Guess(text[len(begun) :], ends=True)
        text, wanted = self._text.text, begun[-_MAX_BEGUN:]
        is_copy = len(begun) > _MAX_BEGUN and any(map(str.isspace, wanted))
        for end in self._text.latest(wanted, _OCCURRENCES):
            if is_copy:
                return Guess(text[end : end + _MAX_REST].partition(SPECIAL)[0], ends=False)
            start = end - len(wanted)
            before = text[start - 1] if start else ""
            if len(begun) > _MAX_BEGUN or not _is_within_word(before, begun):
                return _value_in(text[start : end + _MAX_REST], len(wanted), _QUOTES.get(before, ""))
        return NO_GUESS

    def rest_of_number(self, begun: str) -> Guess:
        """The suffix of a started number."""
        text = self._text.text
        for end in self._text.latest(begun, _OCCURRENCES):
            before = text[end - len(begun) - 1 : end - len(begun)]
            if before.isalnum() or before in {".", "-"}:
                continue
            rest = _REST_OF_NUMBER.match(text, end, end + _MAX_BEGUN)
            return Guess(rest[0] if rest else "", ends=True)
        return NO_GUESS

    def string(self, key: str, view: SchemaView, written: str) -> str:
        """The text of a string to draft as a key's value; empty if unknown. ``written``: the turn's latest text."""
        if view.options:
            return next((text for text in map(_text_of, view.options) if text and self._text.mentions(text)), "")
        former = self._text.values.get(key, "")
        if former and _has_words(self._text.newest, former):
            return former
        shape = _SHAPES.get(view.format) or (former and shape_of(former)) or _shape_by_name(key, view)
        spans = [each for each in self._text.spans if not _has_words(written, each.text)]
        if shape:
            found = next((each for each in spans if each.shape == shape), None)
            return found.text if found is not None and (not found.age or not former) else former
        return next((each.text for each in spans if each.shape not in _NEEDS_HINT), "")

    def number(self, key: str, written: str) -> str:
        """A number to draft as a key's value; empty if unknown."""
        for text, shape, _ in self._text.spans:
            if shape == "number" and not _has_words(written, text):
                return text
        former = self._text.values.get(key, "")
        return former if shape_of(former) == "number" else ""


def _has_words(text: str, words: str) -> bool:
    """True if a text contains these words as whole words; only the first few occurrences are checked."""
    at = -1
    for _ in range(_OCCURRENCES):
        at = text.find(words, at + 1)
        if at < 0:
            return False
        around = text[max(0, at - 1) : at] + text[at + len(words) : at + len(words) + 1]
        if not any(map(str.isalnum, around)):
            return True
    return False


def _is_within_word(before: str, text: str) -> bool:
    """True if a text after the character ``before`` starts inside a word; never in scripts without blanks."""
    return before.isalnum() and text[0].isalnum() and (before.isascii() or text[0].isascii())


def _text_of(option: str) -> str:
    """The string that a JSON text encodes; empty for a value of another type."""
    return str(json.loads(option)) if option.startswith('"') else ""


def _shape_by_name(key: str, view: SchemaView) -> str:
    if "@" in view.pattern:
        return "address"
    names = f"{key} {view.description}".lower()
    return next((shape for name, shape in _NAMES.items() if name in names), "")


def _value_in(text: str, begun: int, quote: str) -> Guess:
    """The value at the start of a text, without its first ``begun`` characters."""
    if quote and (end := text.find(quote, begun)) >= 0:
        return Guess(text[begun:end], ends=True)
    stop = _STOPS.search(text, begun)
    end = stop.start() if stop else len(text)
    at, is_name = 0, not text[:1].islower() or bool(_PRECISE.search(text[: (text + " ").find(" ")]))
    while is_name and 0 <= (at := text.find(" ", at + 1)) < end:
        if at >= begun and not text[at + 1 : at + 2].isupper():
            end = at
            break
    return Guess(text[begun:end], ends=stop is not None or end < len(text))
