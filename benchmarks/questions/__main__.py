"""Print what public questions say of a run: scripts/demo.sh asks them, and writes the run into its --output.

example: python -m benchmarks.questions demo_output
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.questions import declining, forced, judged
from constrained_k2.evaluation.ab.directory import RunDirectory, open_run
from scripts.smollm2.leaderboard import Leaderboard


def tables(directory: RunDirectory) -> Iterator[str]:
    """Yield the tables of a run."""
    run = judged.judged_run(directory, Leaderboard())
    for made in (judged.right_answers, judged.pairs, judged.errors, judged.judges):
        yield made(run)
    samples = {sample.key: sample for sample in directory.read_samples()}
    changes = [change for change in directory.changes() if change.arm == "nearest"]
    if changes:
        told = changes, samples, directory.wire_format
        yield declining.rules(*told)
        yield forced.by_keyword([*forced.forced_values(*told)])
        found = forced.changed_right_answers(*told)
        yield "\n".join([f"right answers that the constraint changed: {len(found)}", *(f"* {line}" for line in found)])


def main() -> int:
    """Print the tables of the named runs."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.questions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="DIR", help="the --output of scripts/demo.sh")
    for path in parser.parse_args().runs:
        for text in tables(open_run(path)):
            print(text, end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
