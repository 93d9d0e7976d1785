"""Measure coverage, soundness and cost of JSON Schema compilation (about half an hour; needs scripts/fetch_data.py).

Prints every figure about schemas in the docs. Exit code 1 if a promise is broken.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.arguments import add_shared
from benchmarks.schemas.report import PARTS, baseline, measure

BASELINE = Path(__file__).resolve().parents[2] / "tests" / "schema" / "baseline.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print, or write the baseline."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schemas", description=__doc__)
    add_shared(parser)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; repeatable")
    parser.add_argument("--walks", type=int, help="random walks (default: 10,000, and 20,000 over MaskBench)")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit a schema (default: %(default)s)")
    parser.add_argument("--write-baseline", action="store_true", help="only write tests/schema/baseline.json")
    options = parser.parse_args(arguments)
    parts, say = options.part or PARTS, partial(print, flush=True)
    try:
        if options.write_baseline:
            BASELINE.write_text(json.dumps(baseline(options.shared), indent=0, ensure_ascii=False) + "\n")
            return 0
        return int(not measure(options.shared, parts, walks=options.walks, seconds=options.seconds, say=say))
    except FileNotFoundError as error:
        parser.error(f"{error} is missing: run python -m scripts.fetch_data, or name its folder with --shared")


if __name__ == "__main__":
    sys.exit(main())
