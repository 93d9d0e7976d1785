"""Questions of the Berkeley function-calling leaderboard (package bfcl-eval, Apache-2.0): to learn from, and for tests.

The two parts share neither a question's text nor a function, by its name or by way of questions that declare several.
"""

import itertools
import json
import random
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from scipy.cluster.hierarchy import DisjointSet  # type: ignore[import-untyped]

from constrained_k2.evaluation.ab.loaders import read_samples
from constrained_k2.evaluation.sample import Sample
from scripts.fetch_data import ROOT, data_folder, data_path, fetch

WHEEL = "bfcl/bfcl_eval.whl"
"""Its path in the data folder; ``scripts/data.json`` has its version and sha256."""

TESTED = ("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance")
"""Categories of which every question is a test."""

LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance")
"""Categories of users' questions. A question is learnt from if it shares no function with a test of ``TESTED``."""

_MOST_CHARACTERS = 2000  # of a test's tools, as JSON


class Questions(NamedTuple):
    """The two parts."""

    learnt: list[Sample]
    tests: list[Sample]


def wheel() -> Any:
    """Return the package's wheel as a path object, downloaded with pip if it is missing.

    Raises ``SystemExit`` if it cannot be downloaded.
    """
    fetch(ROOT / "data", WHEEL, beside=data_folder())
    return zipfile.Path(data_path(WHEEL))


def questions() -> Questions:
    """Return all questions that declare a function, in the leaderboard's order."""
    package = wheel()
    found = {category: list(read_category(package, category)) for category in (*TESTED, *LIVE)}
    everything = [sample for samples in found.values() for sample in samples]
    groups = DisjointSet(name for sample in everything for name in sample.tools)  # of functions declared together
    for sample in everything:
        first, *others = sample.tools
        for other in others:
            groups.merge(first, other)

    def group(sample: Sample) -> Any:
        return groups[next(iter(sample.tools))]

    tested = {group(sample) for category in TESTED for sample in found[category]}
    tests = [sample for sample in everything if group(sample) in tested]
    asked = {_asked(sample) for sample in tests}
    learnt = [sample for sample in everything if group(sample) not in tested and _asked(sample) not in asked]
    return Questions(learnt, tests)


def drawn_tests(tests: Sequence[Sample], count: int, seed: int = 0) -> list[Sample]:
    """Return up to ``count`` tests, from each category in turn.

    Tests with more than 2,000 characters of tools (some 500 tokens) are left out, since a CPU takes too long to read
    them; 1,574 remain.
    """
    chance = random.Random(seed)  # noqa: S311 - drawing samples
    queues: dict[str, list[Sample]] = {}
    for sample in tests:
        if len(json.dumps(sample.body["tools"])) <= _MOST_CHARACTERS:
            queues.setdefault(sample.category, []).append(sample)
    for queue in queues.values():
        chance.shuffle(queue)
    drawn = (sample for round_ in itertools.zip_longest(*queues.values()) for sample in round_ if sample is not None)
    return list(itertools.islice(drawn, count))


def to_line(sample: Sample) -> dict[str, Any]:
    """Return a question as ``constrained-k2 ab --samples`` reads it: its request, category and right calls."""
    return {**sample.body, "category": sample.category, "expected": sample.to_json()["expected"]}


def _asked(sample: Sample) -> str:
    return json.dumps(sample.body["messages"])


def read_category(package: Any, category: str) -> Iterator[Sample]:
    """Yield a category's questions that declare a function; a question's ``number`` is its line in the wheel's file."""
    for sample in read_samples(package / "bfcl_eval" / "data" / f"BFCL_v4_{category}.json"):
        assert isinstance(sample, Sample), f"{category}: {sample}"
        if sample.tools:
            yield sample
