"""Measure model steps per token inside calls: grammar drafts, n-gram drafts, both and none (about 5 minutes).

Exit code 1 if an answer changes, or if grammar drafts need more than 0.4 steps per token.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.drafts.run import measure


def main() -> int:
    """Measure, and print one line per arm."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drafts", description=__doc__)
    parser.add_argument("--requests", type=int, default=100, help="(default: %(default)s)")
    parser.add_argument("--limit", type=int, default=8, help="draft tokens a step (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        results = measure(Path(directory), requests=options.requests, limit=options.limit)
    expected = results["none"].ids
    print(f"{len(expected)} greedy requests, each with a required call; {results['none'].generated} tokens")
    for arm, found in results.items():
        same = sum(ids == other for ids, other in zip(found.ids, expected, strict=True))
        print(
            f"{arm:22} {found.steps_per_token:.3f} steps a token, {found.accepted} of {found.drafted} drafts accepted, "
            f"{same} of {len(expected)} answers the same"
        )
    changed = any(found.ids != expected for found in results.values())
    slow = max(found.steps_per_token for arm, found in results.items() if arm.startswith("grammar")) > 0.4
    return int(changed or slow)


if __name__ == "__main__":
    sys.exit(main())
