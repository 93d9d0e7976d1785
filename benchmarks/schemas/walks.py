"""Random walks: a model with uniform logits under the mask must write valid instances."""

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jsonschema
import numpy as np

from benchmarks.schemas.corpora import Case
from constrained_k2.engines.protocol import ArgumentGrammar, ArgumentMatcher
from constrained_k2.vocabulary.bitmask import allocate_bitmask, allowed_ids
from constrained_k2.vocabulary.vocabulary import Vocabulary

_PATIENCE = 150  # bytes after which closing characters are preferred
_LONGEST = 20_000


@dataclass(frozen=True, slots=True)
class Walk:
    """One random instance.

    Attributes:
        text: The text, cut if it did not end.
        ended: True if the walk reached the stop.
        steps: Number of tokens.
        uniform: Number of tokens chosen uniformly among the allowed ones.
    """

    text: str
    ended: bool
    steps: int
    uniform: int


def keys_of(schema: Any) -> set[str]:
    """Return every property name in a schema."""
    if isinstance(schema, list):
        return set().union(*map(keys_of, schema))
    if not isinstance(schema, dict):
        return set()
    named, required = schema.get("properties"), schema.get("required")
    found = set(named if isinstance(named, dict) else ())
    found.update(key for key in (required if isinstance(required, list) else ()) if isinstance(key, str))
    return found.union(*map(keys_of, schema.values()))


def walk(grammar: ArgumentGrammar, vocabulary: Vocabulary, schema: Any, seed: int) -> Walk:
    """Write an instance with the vocabulary of bytes.

    Choices are uniform over the mask, with two exceptions. Where a key may begin, every other time a key of the schema
    is written, since uniform bytes never spell a required one. After some steps, characters that close strings, objects
    and arrays are preferred three times in four, so that the walk ends.
    """
    chance = random.Random(seed)  # noqa: S311 - a walk, repeatable
    keys = [f"{json.dumps(key, ensure_ascii=False)}:".encode("utf-8", "ignore") for key in sorted(keys_of(schema))]
    matcher = grammar.matcher("")
    row = allocate_bitmask(1, vocabulary.size)[0]
    end = vocabulary.format.call_end
    closers = np.array([*b'"]}', end])
    text = bytearray()
    uniform = 0
    while len(text) < _LONGEST:
        matcher.fill(row)
        ids = allowed_ids(row)
        if not len(ids):
            raise AssertionError(f"nothing is allowed after {bytes(text)!r}")
        if text.rstrip().endswith((b"{", b",")) and ord('"') in ids and chance.random() < 0.5:
            key = next((key for key in chance.sample(keys, len(keys)) if _take(matcher, key)), b"")
            text += key
            if key:
                continue
        preferred = ids[np.isin(ids, closers)]
        if len(text) > _PATIENCE and len(preferred) and chance.random() < 0.75:
            token = int(chance.choice(preferred))
        else:
            token = int(chance.choice(ids))
            uniform += 1
        if token == end:
            return Walk(text.decode(), ended=True, steps=len(text) + 1, uniform=uniform)
        if not matcher.accept(token):
            raise AssertionError(f"{token} is in the mask but is refused after {bytes(text)!r}")
        text.append(token)
    return Walk(text.decode("utf-8", "replace"), ended=False, steps=len(text), uniform=uniform)


def _take(matcher: ArgumentMatcher, key: bytes) -> bool:
    """Write a key completely, or nothing."""
    for count, byte in enumerate(key):
        if not matcher.accept(byte):
            matcher.rollback(count)
            return False
    return True


def judge(case: Case, text: str) -> str:
    """Return why jsonschema rejects an instance, with formats checked; empty if it is valid."""
    validator: Any = jsonschema.Draft7Validator if case.draft == "draft7" else jsonschema.Draft202012Validator
    schema = json.loads(case.judged or case.schema)
    error = next(validator(schema, format_checker=validator.FORMAT_CHECKER).iter_errors(json.loads(text)), None)
    return "" if error is None else f"{error.message[:200]} at {error.json_path}"


def rounds(cases: list[Case], count: int) -> Iterator[tuple[Case, int]]:
    """Yield ``count`` pairs of a case and a seed, cycling through the cases."""
    return ((cases[number % len(cases)], number // len(cases)) for number in range(count))


def texts(found: Iterable[Walk]) -> tuple[str, ...]:
    """Return the instances of the walks that ended, as compact JSON."""
    return tuple(
        json.dumps(json.loads(walked.text), ensure_ascii=False, separators=(",", ":"))
        for walked in found
        if walked.ended
    )
