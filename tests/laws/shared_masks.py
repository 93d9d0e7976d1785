"""The law of shared masks: a mask depends on what is written, and on nothing that other texts have left in a cache.

    {"a": one of two objects, "b": one of two other objects}
    {"a":{"x":1},"b":{"     is followed by the keys of b's objects, also if {"b":{"y":1},"a":{" was written before

Over single bytes, where an engine without a cache is asked for every mask in half a millisecond.
"""

import json
import random
from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

from constrained_k2 import ConstrainedK2Error, Vocabulary
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.grammar import LLGuidanceGrammar
from constrained_k2.schema.undeclared_keys import UndeclaredKeys
from constrained_k2.vocabulary.bitmask import allocate_bitmask
from tests.laws.feeding import Broken, has
from tests.laws.schemas import Schema
from tests.laws.values import Values, mutant, spelled

_LAW = "a shared mask is another one than a matcher computes alone"
_VALUES = 6  # of a schema; each and its mutant are written with their members in several orders
_ORDERS = 2
_MOST_BYTES = 300
_VOCABULARY = Vocabulary.of_bytes()


@cache
def _engines() -> tuple[LLGuidanceEngine, LLGuidanceEngine]:
    return LLGuidanceEngine(_VOCABULARY), LLGuidanceEngine(_VOCABULARY, mask_cache_bytes=0)


def broken_sharing(schema: Schema, undeclared: UndeclaredKeys, seed: int) -> Iterator[Broken]:
    """Yield the first place of the texts of a schema where its masks differ."""
    draw, document = random.Random(seed), json.dumps(schema)
    try:
        shared, alone = (engine.compile(document, undeclared) for engine in _engines())
    except ConstrainedK2Error:
        return
    for text in _texts(Values(schema, draw), schema, draw):
        difference = _difference(shared, alone, text)
        if difference is not None:
            yield Broken(_LAW, difference)
            return


def _texts(values: Values, schema: Schema, draw: random.Random) -> Iterator[bytes]:
    for _ in range(_VALUES):
        value = values.value(schema)
        for one in (value, mutant(value, draw)):
            for _ in range(_ORDERS if isinstance(one, dict) else 0):
                members = list(one.items())
                draw.shuffle(members)
                yield spelled(dict(members), draw).encode()[:_MOST_BYTES]


def _difference(shared: LLGuidanceGrammar, alone: LLGuidanceGrammar, text: bytes) -> str | None:
    first, second = shared.matcher(""), alone.matcher("")
    rows = allocate_bitmask(2, _VOCABULARY.size)
    for at, byte in enumerate(text):
        try:
            first.fill(rows[0])
            second.fill(rows[1])
        except ConstrainedK2Error:
            return None  # another law is about late failures
        if not np.array_equal(*rows):
            more, less = _bytes(rows[0] & ~rows[1]), _bytes(rows[1] & ~rows[0])
            return f"{more!r} are more and {less!r} less after {text[:at]!r}"
        taken = first.accept(byte)
        if taken != second.accept(byte):
            return f"{bytes((byte,))!r} is {'accepted' if taken else 'refused'} after {text[:at]!r}"
        if not taken:
            return None
    return None


def _bytes(row: npt.NDArray[np.int32]) -> bytes:
    return bytes(byte for byte in range(256) if has(row, byte))
