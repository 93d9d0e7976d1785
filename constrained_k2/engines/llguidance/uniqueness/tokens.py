"""Classifies a vocabulary's tokens by whether they may end or contain an object key or array item."""

import re
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from constrained_k2.engines.llguidance.uniqueness.spelled import unescaped
from constrained_k2.vocabulary.bitmask import words_per_row
from constrained_k2.vocabulary.vocabulary import Vocabulary

Ids = npt.NDArray[np.int64]
Row = npt.NDArray[np.int32]
ALONE = {text[0]: text for text in (b"null", b"true", b"false", b"0")}
"""First byte -> the only possible array item (literal, or 0 among integers) that begins with this byte."""
_BLANKS = rb"[ \t\r\n]*"
_TWO_KEYS = re.compile(rb'"' + _BLANKS + rb':[\x00-\xff]*[,{][ \t\r\n]*"[\x00-\xff]*"')
# A comma before a whole item, between an item and a word of ALONE, or in an array that the token opens.
_TWO_ITEMS = re.compile(
    rb"," + _BLANKS + rb'(?:"[\x00-\xff]*"|[-0-9tfn][-+.0-9A-Za-z]*[ \t\r\n,\]}])'
    rb'|[-+.0-9A-Za-z"]' + _BLANKS + rb"," + _BLANKS + rb"[tfn0]"
    rb"|\[[\x00-\xff]*," + _BLANKS + rb'["\-0-9tfn]'
)
_STRING = re.compile(rb'"([^"\\]*(?:\\[\x00-\xff][^"\\]*)*)"')
_TO_QUOTE = re.compile(rb'([^"\\]*(?:\\[\x00-\xff][^"\\]*)*)"')
_WORD = re.compile(rb"(?<![-+.0-9A-Za-z])[-+.0-9A-Za-z]+(?=[ \t\r\n,\]}])")
_TO_END = re.compile(rb"([-+.0-9A-Za-z]*)[ \t\r\n,\]}]")
_TO_ALONE = re.compile(rb"(?:([-+.0-9A-Za-z]*" + _BLANKS + rb"," + _BLANKS + rb")|" + _BLANKS + rb")([tfn0])")
# Other tokens get only the ANYWAY bit, plus an entry in ``alone`` if they begin a word of ALONE.
_RELEVANT = re.compile(rb'["\\{}\[\],:]|[-+.0-9A-Za-z][ \t\r\n]|\A[ \t\r\n]+\Z')
_STRUCTURE = frozenset(b"{}[],:")


class TokenEffect:
    """Flags of a token: where it can change the scanner's state. Plain ints, because every token is looked up."""

    ANYWAY = 1  # inside a key, a compared item or a tag every token counts, so every token has this flag
    STRUCTURE = 2
    BACKSLASH = 4
    QUOTE = 8  # also special tokens


class Closing:
    """Tokens that end a string, number or literal, by the suffix of it that they begin with."""

    def __init__(self, ids: Mapping[bytes, list[int]]) -> None:
        self.ids: dict[bytes, Ids] = {rest: np.array(found, dtype=np.int64) for rest, found in ids.items()}
        self.longest = max(map(len, self.ids), default=0)  # bytes

    def rests_of(self, text: bytes) -> Iterator[tuple[bytes, Ids]]:
        """Yield each non-empty suffix of a text with which some tokens begin, and these tokens."""
        for size in range(1, min(self.longest, len(text)) + 1):
            rest = text[-size:]
            if (ids := self.ids.get(rest)) is not None:
                yield rest, ids


class TokenEffects:
    """The tokens of one vocabulary by their effect on keys and items. Constant.

    Attributes:
        matters: By token id, the bits of :class:`TokenEffect`.
        quoted: The tokens that contain a quote.
        in_json: Suffix of a JSON string, decoded -> the tokens that write it and end the string.
        in_words: Suffix of a number or literal -> the tokens that write it and end the number or literal.
        in_attribute: Suffix of an attribute's value -> the tokens that write it and end the value.
        alone: Word of :data:`ALONE` -> the tokens that begin it after a comma, and the tokens that begin it directly.
        whole: Text -> the tokens that may contain it as a whole key, string or word.
        two_keys: The tokens that may end two keys.
        two_items: The tokens that may end two items, begin a word of :data:`ALONE` after an item, or open an array.
        reach: The number of last bytes of a key or item that tokens can depend on.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        size = vocabulary.size
        self.words = words_per_row(size)
        self.matters = bytearray([TokenEffect.ANYWAY | TokenEffect.QUOTE]) * size
        quoted, two_keys, two_items = (list[int]() for _ in range(3))
        alone: dict[bytes, tuple[list[int], list[int]]] = {word: ([], []) for word in ALONE.values()}
        in_json, in_words, in_attribute, whole = (dict[bytes, list[int]]() for _ in range(4))
        for raw, token_id in zip(*vocabulary.sorted_tokens, strict=True):
            self.matters[token_id] = TokenEffect.ANYWAY
            if found := _TO_ALONE.match(raw):
                alone[ALONE[found[2][0]]][not found[1]].append(token_id)
            if not _RELEVANT.search(raw):
                continue
            self.matters[token_id] |= _matters(raw)
            for text in set(_whole_texts(raw)):
                whole.setdefault(text, []).append(token_id)
            if _TWO_ITEMS.search(raw):
                two_items.append(token_id)
            if word := _TO_END.match(raw):
                in_words.setdefault(word[1], []).append(token_id)
            if b'"' not in raw:
                continue
            quoted.append(token_id)
            in_attribute.setdefault(raw[: raw.index(b'"')], []).append(token_id)
            if rest := _TO_QUOTE.match(raw):
                in_json.setdefault(unescaped(rest[1]), []).append(token_id)
            if _TWO_KEYS.search(raw):
                two_keys.append(token_id)
        self.quoted, self.two_keys, self.two_items = (
            np.array(ids, dtype=np.int64) for ids in (quoted, two_keys, two_items)
        )
        self.alone = {word: [np.array(ids, dtype=np.int64) for ids in both] for word, both in alone.items()}
        self.in_json, self.in_words, self.in_attribute = map(Closing, (in_json, in_words, in_attribute))
        self.whole: Mapping[bytes, list[int]] = whole
        longest = max(self.in_json.longest, self.in_words.longest, self.in_attribute.longest)
        self.reach = max(longest, max(map(len, whole), default=0)) + 1


def _matters(raw: bytes) -> int:
    found = 0 if _STRUCTURE.isdisjoint(raw) else TokenEffect.STRUCTURE
    return found | (TokenEffect.BACKSLASH if b"\\" in raw else 0) | (TokenEffect.QUOTE if b'"' in raw else 0)


def _whole_texts(raw: bytes) -> Iterator[bytes]:
    """Yield the texts in a token that may be a whole key, string or word, in JSON or in an attribute."""
    at = raw.find(b'"')
    while at >= 0:
        if found := _STRING.match(raw, at):
            yield unescaped(found[1])
        end = raw.find(b'"', at + 1)
        if end >= 0:
            yield raw[at + 1 : end]
        at = end
    for word in _WORD.finditer(raw):
        yield word[0]
