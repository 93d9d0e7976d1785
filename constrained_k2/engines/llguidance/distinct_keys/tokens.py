"""Finds the tokens that may end a key, or hold a whole one, among all tokens of a vocabulary."""

import re
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from constrained_k2.engines.llguidance.distinct_keys.spelled import unescaped
from constrained_k2.vocabulary.bitmask import words_per_row
from constrained_k2.vocabulary.vocabulary import Vocabulary

Ids = npt.NDArray[np.int64]
_TWO_KEYS = re.compile(rb'"[ \t\r\n]*:[\x00-\xff]*[,{][ \t\r\n]*"[\x00-\xff]*"')
_STRING = re.compile(rb'"([^"\\]*(?:\\[\x00-\xff][^"\\]*)*)"')
_TO_QUOTE = re.compile(rb'([^"\\]*(?:\\[\x00-\xff][^"\\]*)*)"')


class Closing:
    """The tokens that end a key, by the rest of the key that they begin with."""

    def __init__(self, ids: Mapping[bytes, list[int]]) -> None:
        self.ids: dict[bytes, Ids] = {rest: np.array(found, dtype=np.int64) for rest, found in ids.items()}
        self.longest = max(map(len, self.ids), default=0)  # bytes


class KeyTokens:
    """The tokens of one vocabulary by what they do to keys. Constant.

    Attributes:
        matters: By token id, 1 for the tokens that hold a quote, and for special tokens.
        quoted: The tokens that hold a quote.
        in_json: The tokens that end a key of a JSON object, by the rest of the key without escapes.
        in_attribute: The tokens that end an attribute's value, by the rest of the value.
        whole: The tokens that may hold a whole key, by this key.
        two_keys: The tokens that may end two keys.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.words = words_per_row(vocabulary.size)
        self.matters = bytearray(vocabulary.size)
        quoted, two_keys = list[int](), list[int]()
        in_json, in_attribute, whole = (dict[bytes, list[int]]() for _ in range(3))
        for token_id in range(vocabulary.size):
            raw = vocabulary.ordinary_bytes(token_id)
            if raw and b'"' not in raw:
                continue
            self.matters[token_id] = 1
            if not raw:
                continue
            quoted.append(token_id)
            in_attribute.setdefault(raw[: raw.index(b'"')], []).append(token_id)
            if rest := _TO_QUOTE.match(raw):
                in_json.setdefault(unescaped(rest[1]), []).append(token_id)
            for key in set(_whole_keys(raw)):
                whole.setdefault(key, []).append(token_id)
            if _TWO_KEYS.search(raw):
                two_keys.append(token_id)
        self.quoted, self.two_keys = (np.array(ids, dtype=np.int64) for ids in (quoted, two_keys))
        self.in_json, self.in_attribute = Closing(in_json), Closing(in_attribute)
        self.whole: Mapping[bytes, list[int]] = whole


def _whole_keys(raw: bytes) -> Iterator[bytes]:
    """Yield what may be a whole key in a token, as JSON and as an attribute."""
    at = raw.find(b'"')
    while at >= 0:
        if found := _STRING.match(raw, at):
            yield unescaped(found[1])
        end = raw.find(b'"', at + 1)
        if end >= 0:
            yield raw[at + 1 : end]
        at = end
