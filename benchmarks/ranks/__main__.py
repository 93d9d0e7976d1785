"""Send greedy requests to servers of several ranks and of one, with the package and without; compare the token ids.

The small model runs with tensor parallel 2, a random dense model with data parallel 2: vLLM's CPU build cannot run
mixture-of-experts models with data parallel. Exit code 1 if a call is invalid, or if answers of one rank and several
differ more often with the package than without.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.ranks.run import STOCK, Answers, greedy_samples, measure
from benchmarks.ranks.topologies import ONE_RANK, TOPOLOGIES
from benchmarks.report import Cell, table
from constrained_k2.testing import build_model
from scripts.small_model.shipped import build_small_model

SEVERAL = ("tensor parallel 2", "data parallel 2")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    parser.add_argument("--requests", type=int, default=400, help="(default: %(default)s)")
    samples = greedy_samples(parser.parse_args().requests)
    good = True
    with tempfile.TemporaryDirectory() as name:
        for topology in SEVERAL:
            is_random = TOPOLOGIES[topology].is_dense
            model = Path(name) / topology.replace(" ", "-")
            if is_random:
                build_model(model, arch="llama")
            else:
                build_small_model(model)
            one, several = (
                measure(model, Path(name), samples, each, is_random=is_random) for each in (ONE_RANK, topology)
            )
            print(f"Greedy requests, {'a random dense model' if is_random else 'the small model'}\n")
            print(printed(topology, one, several), "\n")
            for ranks, found in ((ONE_RANK, one), (topology, several)):
                for arm, its in found.items():
                    for problem in its.problems[:5] if arm != STOCK else ():
                        print(f"{ranks}, {arm}: {problem}")
            good &= is_good(one, several)
    return int(not good)


def same(one: Answers, several: Answers) -> int:
    """Count the answers of several ranks with the token ids of one; a failed request is the same as nothing."""
    return sum(bool(ids) and ids == others for ids, others in zip(one.ids, several.ids, strict=True))


def printed(topology: str, one: Mapping[str, Answers], several: Mapping[str, Answers]) -> str:
    """Format the answers of one rank and of several, by arm."""
    rows: list[list[Cell]] = []
    for arm in one:
        for ranks, its in ((ONE_RANK, one[arm]), (topology, several[arm])):
            alike = "" if its is one[arm] else f"{same(one[arm], its)} of {len(its.ids)}"
            wrong = None if arm == STOCK else len(its.problems)  # vLLM alone promises no valid calls
            rows.append([ranks, arm, alike, its.calls, its.cut, wrong])
    return table(("", "", "answers as with one rank", "calls", "cut", "invalid or failed"), rows)


def is_good(one: Mapping[str, Answers], several: Mapping[str, Answers]) -> bool:
    """True if no constrained call is invalid, and no arm differs from one rank more often than vLLM alone."""
    kept = {arm: same(one[arm], several[arm]) for arm in one}
    ours = one.keys() - {STOCK}
    return not any(one[arm].problems or several[arm].problems or kept[arm] < kept[STOCK] for arm in ours)


if __name__ == "__main__":
    sys.exit(main())
