"""Random walks: a model with uniform logits under the mask must write valid instances, and reach their end."""

import codecs
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from typing import Any

from benchmarks.schemas.corpora import Case
from benchmarks.schemas.judge import judge
from constrained_k2.compiler.compiler import Compiler
from constrained_k2.compiler.shared import GrammarOptions
from constrained_k2.engines.protocol import ArgumentGrammar, ArgumentMatcher
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.turn.completions.json_completions import json_completions
from constrained_k2.turn.cursors.arguments_cursor import ArgumentsCursor
from constrained_k2.turn.cursors.json_cursor import JsonCursor
from constrained_k2.turn.finish_budget import FinishBudget
from constrained_k2.vocabulary.bitmask import allocate_bitmask, allowed_ids
from constrained_k2.vocabulary.vocabulary import Vocabulary

_PATIENCE = 150  # bytes after which most choices lead to the end
_STEERED = 1_000  # bytes after which all do
_LONGEST = 50_000  # one schema of MaskBench requires 587 keys, of 29,750 bytes
_SHOWN = 200  # characters of an instance


@dataclass(frozen=True, slots=True)
class Walk:
    """One random instance."""

    text: str  # the text, cut if it did not end
    steps: int  # number of tokens
    uniform: int  # number of tokens chosen uniformly among the allowed ones
    problem: str = ""  # why it did not end; empty if it did

    @property
    def ended(self) -> bool:
        """True if the walk reached the stop."""
        return not self.problem


@dataclass(slots=True)
class Walks:
    """The walks over several schemas."""

    schemas: int = 0  # number of schemas with a grammar
    sound: int = 0  # number of those with nothing relaxed, whose instances are judged
    counts: Counter[str] = field(default_factory=Counter)  # by result: `ended`, `invalid`, or a problem
    steps: int = 0  # number of tokens
    uniform: int = 0  # number of tokens chosen uniformly
    faults: list[str] = field(default_factory=list)  # A line for each walk that did not end or is invalid

    def add(self, walked: Walk, problem: str, name: str) -> None:
        """Count one walk; ``problem``: why its instance is invalid."""
        self.counts["invalid" if problem else walked.problem.partition(":")[0] or "ended"] += 1
        self.steps += walked.steps
        self.uniform += walked.uniform
        if problem or walked.problem:
            self.faults.append(f"{name}: {problem or walked.problem}: {walked.text[:_SHOWN]!r}")

    def __str__(self) -> str:
        """The figures in one line."""
        wrong = ", ".join(f"{self.counts[kind]} {kind}" for kind in ("invalid", "no end", "no token", "failed"))
        share = self.uniform / max(self.steps, 1)
        return (
            f"{self.counts.total():,} walks over {self.schemas:,} schemas ({self.sound:,} with nothing relaxed), "
            f"{share:.0%} of {self.steps:,} tokens uniform under the mask: **{wrong}**."
        )


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


def walk(grammar: ArgumentGrammar, vocabulary: Vocabulary, schema: Any, seed: int, *, may_relax: bool = False) -> Walk:
    """Write an instance.

    Choices are uniform over the mask, but where a key may begin, every other time a key of the schema is written, since
    uniform tokens never spell a required one. After some bytes, three choices of four, and later all, are those of the
    finish reserve, as in the last tokens of a request that has one, and uniform over the mask that it leaves.
    """
    chance = random.Random(seed)  # noqa: S311 - a walk, repeatable
    keys = [_encoded(vocabulary, f"{json.dumps(key, ensure_ascii=False)}:") for key in sorted(keys_of(schema))]
    matcher = grammar.matcher("", may_relax=may_relax)
    row = allocate_bitmask(1, vocabulary.size)[0]
    end, (quote,) = vocabulary.format.call_end, vocabulary.encode('"')
    budget, position = _budget(vocabulary), JsonCursor(schema)
    decoder, fed = codecs.getincrementaldecoder("utf-8")("replace"), 0
    text = bytearray()
    steps = uniform = 0
    problem = f"no end: after {_LONGEST} bytes"
    try:
        while len(text) < _LONGEST:
            matcher.fill(row)
            ids = allowed_ids(row)
            if not len(ids):
                problem = "no token: none is allowed"
                break
            steered = len(text) > _PATIENCE and chance.random() < (0.75 if len(text) < _STEERED else 1)
            if steered and end in ids:
                return Walk(text.decode(), steps + 1, uniform)
            if steered:
                position.feed(decoder.decode(bytes(text[fed:])))
                fed = len(text)
                plan = matcher.plan
                tried = (
                    _encoded(vocabulary, alternative)
                    for alternative in (() if plan is None else json_completions(position, plan))
                )
                taken = next(filter(None, (list(takewhile(matcher.accept, alternative)) for alternative in tried)), [])
                text += b"".join(map(vocabulary.token_bytes, taken))
                steps += len(taken)
                if taken:
                    continue
                budget.narrow(ArgumentsCursor(cursor=position), plan, row)
                ids = allowed_ids(row)
            elif text.rstrip().endswith((b"{", b",")) and quote in ids and chance.random() < 0.5:
                key = next((key for key in chance.sample(keys, len(keys)) if _take(matcher, key)), [])
                text += b"".join(map(vocabulary.token_bytes, key))
                steps += len(key)
                if key:
                    continue
            uniform += not steered
            token = int(chance.choice(ids))
            steps += 1
            if token == end:
                return Walk(text.decode(), steps, uniform)
            if not matcher.accept(token):
                problem = f"no token: {token} is in the mask but is refused"
                break
            text += vocabulary.token_bytes(token)
    except ConstrainedK2Error as error:
        problem = f"failed: {error.problem}"
    return Walk(text.decode("utf-8", "replace"), steps, uniform, problem)


@cache
def _budget(vocabulary: Vocabulary) -> FinishBudget:
    return FinishBudget(vocabulary)


def _encoded(vocabulary: Vocabulary, text: str) -> list[int]:
    return vocabulary.encode(text.encode("utf-8", "ignore").decode())


def _take(matcher: ArgumentMatcher, key: Sequence[int]) -> bool:
    """Write a key completely, or nothing."""
    for count, token in enumerate(key):
        if not matcher.accept(token):
            matcher.rollback(count)
            return False
    return True


def walk_over(cases: Sequence[Case], count: int, compiler: Compiler, options: GrammarOptions) -> Walks:
    """Walk over the schemas that have a grammar, ``count`` times in all; judge those with nothing relaxed."""
    found = Walks()
    for number, case in enumerate(cases):
        seeds = range(count * number // len(cases), count * (number + 1) // len(cases))
        schema = json.loads(case.schema)
        try:
            grammar = compiler.grammar(case.schema, "", options=options)
        except ConstrainedK2Error:
            continue  # refusals are counted elsewhere
        is_sound = not grammar.coverage.inexact and r"\\p{" not in case.schema  # Python's re has no \p
        found.schemas += 1
        found.sound += is_sound
        for seed in seeds:
            walked = walk(grammar, compiler.vocabulary, schema, seed, may_relax=not is_sound)
            problem = judge(case, walked.text) if is_sound and walked.ended else ""
            found.add(walked, problem, f"{case.name}, seed {seed}")
    return found
