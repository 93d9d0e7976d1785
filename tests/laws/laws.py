"""The laws of one schema: what its masks show, what they accept, what jsonschema says, and what coverage promises.

for broken in broken_laws(bench, schema, seed=1, counts=Counter()):
    print(broken)
"""

import json
import logging
import random
import sys
from collections import Counter
from collections.abc import Iterator
from logging.handlers import BufferingHandler
from typing import Any

import jsonschema
import numpy as np

from constrained_k2 import CompiledToolCalls, SchemaTooCostly, ToolCallSpec, UnsupportedSchema
from constrained_k2.schema.coverage import Coverage
from constrained_k2.schema.dialects import in_json_schema
from constrained_k2.schema.undeclared_keys import UndeclaredKeys
from tests.kit.tools import tool
from tests.kit.xtml import TYPES, block
from tests.kit.xtml import decode as decode_blocks
from tests.laws.feeding import Bench, Broken, Piece
from tests.laws.schemas import Schema
from tests.laws.shared_masks import broken_sharing
from tests.laws.values import DuplicateKeyError, Values, decoded, judge_of, mutant, spelled

# Narrowings that concern only how a value is spelled, which the values here are not.
SPELLINGS = ("1.0 and 1e3", "1.0, an integer", "numbers are written without an exponent")
WALK_TOKENS = 160


class Trial:
    """One compiled schema, with its judge."""

    def __init__(
        self, bench: Bench, schema: Schema, draw: random.Random, counts: Counter[str], undeclared: UndeclaredKeys
    ) -> None:
        """Compile the schema; an UnsupportedSchema or SchemaTooCostly if it is refused."""
        self.bench, self.schema, self.draw, self.counts = bench, schema, draw, counts
        spec = ToolCallSpec.from_openai({"tools": [tool("t", schema)], "undeclared_keys": undeclared})
        self.compiled: CompiledToolCalls = bench.compiler.compile(spec, check=False)
        self.compiled.admit()
        self.grammar = self.compiled.grammar("t")
        self.coverage: Coverage = self.compiled.coverage("t")
        if self.compiled.fast_path_count and self.coverage.inexact:
            raise Broken("a schema is admitted by its shape and not wholly enforced", self.coverage.inexact)
        self.is_sound = self.coverage.is_sound and not self.coverage.read_as
        self.is_complete = not self.coverage.read_as and all(
            use.reason.startswith(SPELLINGS) for use in self.coverage.narrowed
        )
        self._judge = _judge(schema)

    def is_valid(self, value: Any) -> bool | None:
        """True if jsonschema accepts a value; None if it cannot tell."""
        return is_valid(self._judge, value)

    def matcher(self) -> Any:
        return self.compiled.arguments("t")

    def pieces(self, value: Any) -> list[Piece]:
        """One spelling of arguments."""
        if not self.bench.is_xtml:
            return [spelled(value, self.draw).encode()]
        tokens = self.bench.vocabulary.special_tokens
        found: list[Piece] = []
        for key, member in value.items():
            text = member if isinstance(member, str) else spelled(member, self.draw)
            parts = block(key, TYPES[type(member)], text)
            found += [tokens[part] if at in {0, 2, 4, 6} else part.encode() for at, part in enumerate(parts)]
        return [piece for piece in found if piece != b""]

    def read(self, pieces: list[Piece]) -> Any:
        """The value of a complete text; Broken if it is none, or has a key twice."""
        try:
            if not self.bench.is_xtml:
                (text,) = pieces
                assert isinstance(text, bytes)
                return decoded(text.decode())
            ids = self.bench.bytewise(pieces)
            return decode_blocks(self.bench.vocabulary, ids)
        except DuplicateKeyError as error:
            raise Broken("a key is written twice", error) from None
        except (ValueError, AssertionError) as error:
            raise Broken("what is written is not JSON", f"{pieces!r}: {error}") from None

    def text(self, value: Any, *, probes: float, is_direct: bool = False) -> None:
        """A value is taken in every split alike; if coverage says so, exactly if it is valid; ``is_direct`` as in feed()."""
        bench, draw = self.bench, self.draw
        pieces = self.pieces(value)
        size = sum(1 if isinstance(piece, int) else len(piece) for piece in pieces)
        splits = {
            "the tokenizer's tokens": bench.canonical(pieces),
            "single bytes": bench.bytewise(pieces),
            "any tokens": bench.split(pieces, draw),
        }
        outcomes: dict[str, tuple[int, int, bool]] = {}  # bytes taken, bytes with the refused token, whether complete
        for name, ids in splits.items():
            matcher = self.matcher()
            share = probes if name != "single bytes" else probes / 8
            taken = bench.feed(matcher, ids, draw, share, is_direct=is_direct and name == "single bytes")
            self.counts["tokenizations"] += 1
            self.counts["tokens"] += len(ids)
            ends = np.cumsum([bench.size(token) for token in ids])
            upto = size if taken == size else int(ends[np.searchsorted(ends, taken, "right")])
            outcomes[name] = taken, upto, taken == size and matcher.is_complete()
        self.counts["texts"] += 1
        last = outcomes["single bytes"][0]
        if len({outcome[2] for outcome in outcomes.values()}) > 1 or any(
            not taken <= last <= upto - (taken < size) for taken, upto, _ in outcomes.values()
        ):
            shown = {name: (outcome, bench.shown(splits[name])) for name, outcome in outcomes.items()}
            raise Broken("a text is taken in one split and not in another", shown)
        is_taken = outcomes["single bytes"][2]
        is_valid = self.is_valid(value)
        self.counts["valid texts"] += bool(is_valid)
        if is_taken and is_valid is False and self.is_sound:
            raise Broken("an invalid value is accepted, and coverage says enforced", _texts(pieces))
        if is_valid and not is_taken and self.is_complete:
            raise Broken("a valid value is refused, and coverage says nothing", f"{_texts(pieces)}, at byte {last}")

    def walk(self, *, probes: float) -> None:
        """A random model ends with a valid value, or not at all."""
        bench, draw = self.bench, self.draw
        matcher = self.matcher()
        ids = bench.walk(matcher, draw, WALK_TOKENS, probes)
        self.counts["walks"] += 1
        if not matcher.is_complete():
            self.counts["walks without an end"] += 1
            return
        pieces = bench.pieces(ids) or [b""]
        value = self.read(pieces)
        if self.is_sound and self.is_valid(value) is False:
            raise Broken("an invalid value is written, and coverage says enforced", bench.shown(ids))
        for again in (bench.canonical(pieces), bench.bytewise(pieces)):
            other = self.matcher()
            if bench.feed(other, again, draw) < sum(map(bench.size, again)) or not other.is_complete():
                raise Broken("a text is taken in one split and not in another", [bench.shown(ids), bench.shown(again)])


def broken_laws(bench: Bench, schema: Schema, seed: int, counts: Counter[str], values: int = 4) -> Iterator[Broken]:
    """Yield each law that a schema breaks, the first place of each part of the trial."""
    draw = random.Random(seed)
    undeclared: UndeclaredKeys = draw.choice(("allow", "allow", "forbid"))
    counts["schemas"] += 1
    drawn = Values(schema, draw)
    try:
        trial = Trial(bench, schema, draw, counts, undeclared)
    except (UnsupportedSchema, SchemaTooCostly) as error:
        counts["refused schemas"] += 1
        yield from _refusal(schema, drawn, str(error))
        return
    except Broken as broken:
        yield broken
        return
    some = [value for _ in range(values) if isinstance(value := drawn.value(schema), dict)]
    some += [changed for value in some if isinstance(changed := mutant(value, draw), dict)]
    late = BufferingHandler(sys.maxsize)  # what is logged: a grammar that fails late is left for another one
    late.setLevel(logging.WARNING)
    logger = logging.getLogger("constrained_k2")
    logger.addHandler(late)
    try:
        for number in range(len(some) + 1):
            probes = 0.06 if draw.random() < 0.3 else 0
            try:
                if number < len(some):
                    trial.text(some[number], probes=probes)
                else:
                    trial.walk(probes=probes)
            except Broken as broken:
                if not late.buffer:
                    yield broken
            except (UnsupportedSchema, SchemaTooCostly) as error:
                yield Broken("an admitted schema fails in the call", error)
            if late.buffer:
                messages = [record.getMessage() for record in late.buffer]
                yield Broken("a call goes on with another grammar", messages)
                return
    finally:
        logger.removeHandler(late)
    yield from broken_sharing(schema, undeclared, seed)


def _judge(schema: Schema) -> Any:
    try:
        return judge_of(schema)
    except jsonschema.SchemaError:
        return None


def is_valid(judge: Any, value: Any) -> bool | None:
    """True if a validator accepts arguments; None if it cannot tell, or there is none."""
    if judge is None:
        return None
    try:
        return isinstance(value, dict) and bool(judge.is_valid(value))
    except BaseException as error:  # references and recursion trip it in several ways, also in Rust's panics
        if isinstance(error, KeyboardInterrupt):
            raise
        return None


def _refusal(schema: Schema, drawn: Values, problem: str) -> Iterator[Broken]:
    if "no value satisfies" not in problem and "no instance" not in problem:
        return
    read, _ = in_json_schema(schema)  # "nullable" and its kin change which values there are
    for _ in range(20):
        value = drawn.value(schema)
        if is_valid(_judge(schema), value) and is_valid(_judge(read), value):
            yield Broken("a schema is refused as one without values, and has one", f"{json.dumps(value)}: {problem}")
            return


def _texts(pieces: list[Piece]) -> str:
    return repr("".join("|" if isinstance(piece, int) else piece.decode() for piece in pieces))
