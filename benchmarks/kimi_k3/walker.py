"""A model with random logits under masks of Kimi K3's turns, on the real vocabulary."""

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.schemas.walks import keys_of
from constrained_k2.formats.kimi_k3 import ARGUMENT, VALUE_TYPES, escape
from constrained_k2.vocabulary.bitmask import TokenSet, allocate_bitmask
from constrained_k2.vocabulary.vocabulary import Vocabulary

Row = npt.NDArray[np.int32]

_ENDING = 0.3  # how often a value is ended where it may be
_NAMED = 0.7  # how often a key of the schema is tried where a key may begin
_PATIENCE = 400  # tokens, after which most of the values are ended
_ENDING_LATE = 0.9


class Turn(Protocol):
    """The state of a turn under some grammar."""

    def fill(self, bitmask: Row) -> None:
        """Write the allowed tokens into a bitmask, int32 ``[1, words]``."""

    def accept(self, token_id: int) -> bool:
        """Accept a token; False if it is not allowed."""

    def rollback(self, count: int) -> None:
        """Undo the last tokens, 64 at most."""


@dataclass(frozen=True, slots=True)
class Names:
    """The keys of a tool's schema as a model may write them, each as tokens.

    Attributes:
        tags: The text of an argument's tag up to its end, under each key of the schema's root with each type.
        keys: The keys of all objects, quoted, with their colons.
    """

    tags: tuple[tuple[int, ...], ...]
    keys: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, schema: Any, vocabulary: Vocabulary) -> "Names":
        """Return the names of a schema, an object's."""
        declared = schema.get("properties") if isinstance(schema, dict) else None
        root = sorted({*(declared if isinstance(declared, dict) else ()), *schema.get("required", ())})
        tags = (
            (
                *vocabulary.encode(f'{ARGUMENT} key="{escape(key)}" type="{kind}"'),
                vocabulary.format.argument_begin,
            )
            for key in root
            for kind in dict.fromkeys(VALUE_TYPES.values())
        )
        keys = (vocabulary.encode(f"{json.dumps(key, ensure_ascii=False)}:") for key in sorted(keys_of(schema)))
        return cls(tuple(tags), tuple(map(tuple, keys)))


class Walker:
    """Writes turns. Three times in ten it ends what may end; it prefers the schema's own keys; else any token."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        markers = vocabulary.format
        self._open = markers.call_begin
        self._stop = markers.turn_end
        ends = (markers.call_end, markers.turn_end)
        self._ends = self._row([*ends, *self._ids(b"}", b"]")])
        self._ends_of_texts = self._row([*ends, *self._ids(b'"')])

    def walk(self, turn: Turn, names: Names, seed: int, begun: Iterable[int] = (), limit: int = 6000) -> list[int]:
        """Return the tokens of a turn up to its stop, ``begun`` included; without a stop if it is longer than a limit.

        Raises:
            AssertionError: A mask is empty, or one of its tokens is refused.
        """
        chance = random.Random(seed)  # noqa: S311 - a walk, repeatable
        bitmask = allocate_bitmask(1, self.vocabulary.size)
        ids: list[int] = []
        for token in begun:
            assert turn.accept(token), f"{self.vocabulary.decode([token])!r} cannot begin a turn"
            ids.append(token)
        while len(ids) < limit and (not ids or ids[-1] != self._stop):
            if written := self._name(turn, names, ids, chance):
                ids += written
                continue
            turn.fill(bitmask)
            token = self._choose(bitmask[0], chance, len(ids))
            assert token >= 0, f"nothing is allowed after …{self.vocabulary.decode(ids[-200:])!r}"
            if not turn.accept(token):
                before = self.vocabulary.decode(ids[-200:])
                raise AssertionError(f"{token} is in the mask but is refused after …{before!r}")
            ids.append(token)
        return ids

    def _name(self, turn: Turn, names: Names, ids: list[int], chance: random.Random) -> tuple[int, ...]:
        """Write the first of the names in a random order that is allowed here, if a name may begin."""
        if not ids:
            return ()
        is_tag = ids[-1] == self._open
        begins = is_tag or self.vocabulary.ordinary_bytes(ids[-1]).rstrip().endswith((b"{", b","))
        if not begins or chance.random() >= _NAMED:
            return ()
        known = names.tags if is_tag else names.keys
        return next((name for name in chance.sample(known, min(len(known), 40)) if _take(turn, name)), ())

    def _choose(self, row: Row, chance: random.Random, length: int) -> int:
        """Return a random token of a mask; -1 if it is empty."""
        counts = np.bitwise_count(row.view(np.uint32))
        total = int(counts.sum())
        if chance.random() < (_ENDING if length < _PATIENCE else _ENDING_LATE):
            in_text = total > self.vocabulary.size // 4
            ends = row & (self._ends_of_texts if in_text else self._ends)
            if not in_text and not ends.any():
                ends = row & self._ends_of_texts  # a quote ends an attribute
            if ends.any():
                row, counts = ends, np.bitwise_count(ends.view(np.uint32))
                total = int(counts.sum())
        if not total:
            return -1
        at = chance.randrange(total)
        sums = counts.cumsum(dtype=np.int64)
        word = int(np.searchsorted(sums, at, side="right"))
        bits = int(row[word]) & 0xFFFFFFFF
        for _ in range(at - int(sums[word]) + int(counts[word])):
            bits &= bits - 1  # drops the lowest bit
        return 32 * word + (bits & -bits).bit_length() - 1

    def _ids(self, *texts: bytes) -> Iterator[int]:
        return (token for text in texts if (token := self.vocabulary.find(text)) is not None)

    def _row(self, ids: Iterable[int]) -> Row:
        row: Row = allocate_bitmask(1, self.vocabulary.size)[0]
        TokenSet(ids, self.vocabulary.size).fill(row)
        return row


def _take(turn: Turn, name: tuple[int, ...]) -> bool:
    """Write a name completely, or nothing."""
    for count, token in enumerate(name):
        if not turn.accept(token):
            turn.rollback(count)
            return False
    return True
