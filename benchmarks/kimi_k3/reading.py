"""Reads the blocks of Kimi K3's calls as they were written, well formed or not, from tokens or from text."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from constrained_k2.formats.kimi_k3 import ARGUMENT, CALL, CLOSE, MESSAGE_END, OPEN, SEPARATOR, VALUE_TYPES, unescape
from constrained_k2.vocabulary.vocabulary import Vocabulary

_MARKERS = (OPEN, CLOSE, SEPARATOR, MESSAGE_END)
_MARKER = re.compile(f"({'|'.join(map(re.escape, _MARKERS))})")
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')


@dataclass(slots=True)
class Block:
    """An argument as it was written; attributes that are missing are empty."""

    key: str
    type: str
    text: str

    @property
    def is_tied(self) -> bool:
        """True if the value is of the type that the tag names."""
        try:
            return self.type == "string" or VALUE_TYPES[type(json.loads(self.text))] == self.type
        except ValueError:
            return False


@dataclass(slots=True)
class Call:
    """A call as it was written."""

    name: str
    index: str
    blocks: list[Block] = field(default_factory=list)


def by_token(ids: list[int], vocabulary: Vocabulary) -> list[str]:
    """Split a turn at the special tokens; a marker that is spelled as text stays text."""
    parts, text = list[str](), list[int]()
    for token in ids:
        marker = vocabulary.special_text(token)
        if marker is None:
            text.append(token)
        else:
            parts += [vocabulary.decode(text), marker]
            text.clear()
    return [*parts, vocabulary.decode(text)]


def by_text(ids: list[int], vocabulary: Vocabulary) -> list[str]:
    """Split a turn at the markers' texts, as a parser of text does."""
    return _MARKER.split(vocabulary.decode(ids))


def calls_in(parts: list[str]) -> list[Call]:
    """Return the calls of a turn, given as texts with a marker after each but the last."""
    calls: list[Call] = []
    pairs = iter(list(zip(["", *parts[1::2]], parts[::2], strict=True)))  # a marker and the text after it
    for marker, text in pairs:
        if marker != OPEN:
            continue
        found = {key: unescape(value) for key, value in _ATTRIBUTE.findall(text)}
        if text.startswith(f"{CALL} "):
            calls.append(Call(found.get("tool", ""), found.get("index", "")))
        elif text.startswith(f"{ARGUMENT} ") and calls:
            calls[-1].blocks.append(Block(found.get("key", ""), found.get("type", ""), _value(pairs)))
    return calls


def _value(pairs: Iterator[tuple[str, str]]) -> str:
    """Return the text after a tag up to what closes it: other markers belong to it."""
    written: list[str] = []
    for number, (marker, text) in enumerate(pairs):
        if marker == CLOSE:
            break
        written.append(text if not number else marker + text)
    return "".join(written)
