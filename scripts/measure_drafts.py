"""Model steps per token inside calls: drafts of the grammar beside n-gram drafts and none (some five minutes).

.venv/bin/python scripts/measure_drafts.py [--requests 100] [--limit 8]
"""

import argparse
import sys
import tempfile
from pathlib import Path

from constrained_k2.evaluation.drafts import measure

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--limit", type=int, default=8, help="tokens drafted at once")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        results = measure(Path(directory), requests=options.requests, limit=options.limit)
    expected = results["none"].ids
    print(f"{len(expected)} greedy requests, a call required in each; {results['none'].generated} tokens")
    for arm, found in results.items():
        same = sum(ids == other for ids, other in zip(found.ids, expected, strict=True))
        print(
            f"{arm:20} {found.steps_per_token:.3f} steps a token, {found.accepted} of {found.drafted} drafts accepted, "
            f"{same} of {len(expected)} answers the same"
        )
    sys.exit(any(found.ids != expected for found in results.values()) or results["grammar"].steps_per_token > 0.6)
