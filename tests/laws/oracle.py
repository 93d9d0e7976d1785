"""Records what the compiler makes of many schemas, so that two trees can be compared: a rewrite changes nothing unseen.

    python -m tests.laws.oracle record before.sqlite      # in the one tree
    python -m tests.laws.oracle record after.sqlite       # in the other
    python -m tests.laws.oracle compare before.sqlite after.sqlite

Of each schema, in Kimi K2's and Kimi K3's encoding: its coverage, its grammar's text, and the masks along random walks, along
values with their members in two orders and three splits into tokens, and while a turn ends within its budget.
"""

import argparse
import json
import multiprocessing
import random
import sqlite3
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.schemas.corpora import MASKBENCH, SUITE, TOOLS, Case, maskbench, suite, tools
from constrained_k2 import ConstrainedK2Error, ToolCallSpec
from constrained_k2.schema.undeclared_keys import UndeclaredKeys
from constrained_k2.turn.finish_budget import FinishBudget
from constrained_k2.vocabulary.bitmask import allowed_ids
from scripts.fetch_data import data_path
from tests.kit.tools import tool
from tests.laws.examples import benches
from tests.laws.feeding import Bench, has
from tests.laws.laws import Trial
from tests.laws.values import Values

_SAMPLE = 2_000  # schemas of MaskBench
_LONGEST = 120  # tokens of a walk or a value
_FREE = 24  # tokens of a call before its budget ends it
_RESERVED = 300
_TASKS = 100  # schemas after which a process is replaced, with what its caches hold

Walk = list[tuple[int, str, int]]  # each token, with the digest of the mask before it and how many tokens that allows


class Found(NamedTuple):
    """The record of one schema in one encoding: coverage as JSON, or why it is refused; its grammar; walks by name."""

    coverage: str
    text: str
    walks: dict[str, Walk]


class Recorder:
    """Records schemas in one encoding."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._budget = FinishBudget(bench.vocabulary)

    def record(self, case: Case) -> Found:
        """Record one schema."""
        schema = json.loads(case.schema)
        draw = random.Random(case.name)
        undeclared: UndeclaredKeys = draw.choice(("allow", "forbid"))
        try:
            trial = Trial(self._bench, schema, draw, Counter(), undeclared)
        except ConstrainedK2Error as error:
            return Found(f"refused: {error}", "", {})
        coverage = json.dumps(trial.coverage.to_json(), indent=1)
        return Found(coverage, getattr(trial.grammar, "text", ""), dict(self._walks(trial, case, undeclared)))

    def _walks(self, trial: Trial, case: Case, undeclared: UndeclaredKeys) -> Iterator[tuple[str, Walk]]:
        draw = trial.draw
        for number in range(2):
            yield f"walk {number}", self._freely(trial.matcher(), draw)
        values = [json.loads(each.text) for each in case.instances if each.valid][:2]
        values = values or [Values(trial.schema, draw).value(trial.schema)]
        for number, value in enumerate(value for value in values if isinstance(value, dict)):
            members = list(value.items())
            draw.shuffle(members)
            for order, one in (("own", value), ("shuffled", dict(members))):
                pieces = trial.pieces(one)
                for split, ids in (
                    ("canonical", self._bench.canonical(pieces)),
                    ("bytewise", self._bench.bytewise(pieces)),
                    ("any", self._bench.split(pieces, draw)),
                ):
                    yield f"value {number}, {order} order, {split} tokens", self._along(trial.matcher(), ids)
        yield "finish", self._finishing(trial.schema, undeclared, draw)

    def _freely(self, matcher: Any, draw: random.Random) -> Walk:
        """Random tokens; near its end those that end values, if there are any."""
        stop = self._bench.stop

        def choose(at: int) -> int:
            return self._choose(self._bench.row, draw, ends=at > _LONGEST // 6)

        return self._written(matcher.fill, choose, lambda token: token != stop and matcher.accept(token), _LONGEST)

    def _along(self, matcher: Any, ids: Sequence[int]) -> Walk:
        """Given tokens, up to the first that is refused."""
        tokens = [*ids[:_LONGEST], -1]
        return self._written(matcher.fill, tokens.__getitem__, matcher.accept, len(tokens))

    def _finishing(self, schema: Any, undeclared: UndeclaredKeys, draw: random.Random) -> Walk:
        """A turn of one call, whose budget is over soon after the arguments begin."""
        body = {"tools": [tool("t", schema)], "tool_choice": "required", "undeclared_keys": undeclared}
        matcher = self._bench.compiler.compile(ToolCallSpec.from_openai(body), check=False).matcher()
        self._budget.apply(matcher, _FREE + _RESERVED, _RESERVED)
        return self._written(
            lambda row: matcher.fill_bitmask(row[None], 0),
            lambda _: self._choose(self._bench.row, draw, ends=False),
            lambda token: matcher.accept_tokens([token]) and not matcher.is_terminated(),
            _FREE + _RESERVED,
        )

    def _written(
        self, fill: Callable[[Any], None], choose: Callable[[int], int], accept: Callable[[int], bool], most: int
    ) -> Walk:
        """Masks and the tokens chosen from them, by their number; up to one that is not accepted, or none (-1)."""
        walk, row = Walk(), self._bench.row
        try:
            while len(walk) < most:
                fill(row)
                token = choose(len(walk))
                walk.append((token, *_digest(row)))
                if token < 0 or not accept(token):
                    break
        except ConstrainedK2Error as error:
            walk.append((-2, str(error), 0))
        return walk

    def _choose(self, row: npt.NDArray[np.int32], draw: random.Random, *, ends: bool) -> int:
        """A token of a mask; -1 for none."""
        allowed = allowed_ids(row)
        if ends or draw.random() < 0.3:
            short = [token for token in self._bench.byte_ids if token >= 0 and has(row, token)]
            closing = [token for token in short if self._bench.vocabulary.ordinary_bytes(token) in _CLOSING]
            closing += [self._bench.stop] * has(row, self._bench.stop)
            allowed = np.asarray(closing or short or allowed)
        return int(allowed[draw.randrange(len(allowed))]) if len(allowed) else -1


_CLOSING = frozenset({b"}", b"]", b'"'})


def _digest(row: npt.NDArray[np.int32]) -> tuple[str, int]:
    return blake2b(row.tobytes(), digest_size=6).hexdigest(), int(np.bitwise_count(row).sum())


def cases(limit: int | None) -> list[Case]:
    """The schemas, sorted by corpus; at most ``limit`` of each."""
    wild = [case for case in maskbench(data_path(MASKBENCH)) if len(case.schema) < 100_000]
    sample = sorted(random.Random(1).sample(wild, min(_SAMPLE, len(wild))), key=lambda case: case.name)
    corpora = (list(tools(data_path(TOOLS))), list(suite(data_path(SUITE))), sample)
    return [case for corpus in corpora for case in corpus[:limit]]


_BENCHES: list[Bench] = []


def _record(case: Case) -> list[tuple[str, str, str, str, bytes]]:
    """The rows of one schema in each encoding."""
    found = []
    for bench in _BENCHES:
        name = "Kimi K3" if bench.is_xtml else "Kimi K2"
        each = Recorder(bench).record(case)
        found.append((case.name, name, each.coverage, each.text, zlib.compress(json.dumps(each.walks).encode())))
    return found


def record(path: Path, processes: int, limit: int | None) -> None:
    """Record every schema to a new database."""
    path.unlink(missing_ok=True)
    found, begun = cases(limit), time.monotonic()
    _BENCHES[:] = benches()
    fork = multiprocessing.get_context("fork")
    with sqlite3.connect(path) as database, fork.Pool(processes, maxtasksperchild=_TASKS) as pool:
        database.execute("create table found (name, encoding, coverage, text, walks, primary key (name, encoding))")
        for number, rows in enumerate(pool.imap(_record, found), 1):
            database.executemany("insert into found values (?, ?, ?, ?, ?)", rows)
            if not number % 500:
                print(f"{number:,} of {len(found):,} schemas, {time.monotonic() - begun:.0f} s", flush=True)
    database.close()


def _read(path: Path) -> Iterator[tuple[str, Found]]:
    if not path.exists():
        raise FileNotFoundError(f"{path}: record it first")
    database = sqlite3.connect(path)
    for name, encoding, coverage, text, walks in database.execute("select * from found order by encoding, rowid"):
        yield f"{name}, {encoding}", Found(coverage, text, json.loads(zlib.decompress(walks)))
    database.close()


def differences(name: str, before: Found, after: Found) -> Iterator[tuple[str, str]]:
    """Yield what differs: its kind, and where."""
    for kind, one, other in (("coverage", before.coverage, after.coverage), ("text", before.text, after.text)):
        if one != other:
            lines = zip_longest(_lines(one), _lines(other), fillvalue="(nothing)")
            first = next((pair for pair in lines if pair[0] != pair[1]), ("", ""))
            yield kind, f"{name}: {first[0][:300]}\n    is now {first[1][:300]}"
    for walk in before.walks.keys() | after.walks.keys():
        one_walk, other_walk = before.walks.get(walk, []), after.walks.get(walk, [])
        for number, (old, new) in enumerate(zip_longest(one_walk, other_walk)):
            if old != new:
                ids = [step[0] for step in one_walk[:number]]
                yield "masks", f"{name}, {walk}, after the tokens {ids}: {old} is now {new} (token, digest, allowed)"
                break


def _lines(text: str) -> list[str]:
    return text.replace("\\n", "\n").splitlines()


def compare(before: Path, after: Path, shown: int) -> int:
    """Print what differs, at most ``shown`` places of a kind; 1 if anything does."""
    old, counts, compared = dict(_read(before)), Counter[str](), 0
    for name, found in _read(after):
        if (one := old.pop(name, None)) is None:
            counts["only in the second"] += 1
            continue
        compared += 1
        kinds = set[str]()
        for kind, where in differences(name, one, found):
            kinds.add(kind)
            if counts[kind] < shown:
                print(f"{kind}: {where}\n")
        counts.update(kinds)
    counts["only in the first"] += len(old)
    print(f"{compared:,} schemas compared; differences: ", end="")
    print(", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count) or "none")
    return int(bool(counts.total()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 if two records differ."""
    parser = argparse.ArgumentParser("python -m tests.laws.oracle", description=(__doc__ or "").split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("record", help="record what this tree makes of the schemas")
    one.add_argument("path", type=Path)
    one.add_argument("--processes", type=int, default=2, help="how many at a time (default: %(default)s)")
    one.add_argument("--limit", type=int, help="schemas of a corpus (default: all; 2,000 of MaskBench)")
    two = commands.add_parser("compare", help="print the first differences of two records")
    two.add_argument("before", type=Path)
    two.add_argument("after", type=Path)
    two.add_argument("--shown", type=int, default=3, help="places of a kind (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.command == "record":
        record(options.path, options.processes, options.limit)
        return 0
    return compare(options.before, options.after, options.shown)


if __name__ == "__main__":
    sys.exit(main())
