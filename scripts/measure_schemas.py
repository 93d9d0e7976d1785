"""Print every figure that the README claims of schemas (some fifteen minutes; needs ../shared).

.venv/bin/python scripts/measure_schemas.py [--part suite] [--walks 10000] [--write-baseline]
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from constrained_k2.evaluation.schemas.report import PARTS, baseline, measure

ROOT = Path(__file__).resolve().parent.parent
BASELINE = ROOT / "tests" / "schema" / "baseline.json"

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this; may be given again")
    parser.add_argument("--walks", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long one tool's schema may take an arm")
    parser.add_argument(
        "--write-baseline", action="store_true", help="only write what becomes of each group of the suite"
    )
    options = parser.parse_args()
    shared = ROOT.parent / "shared"
    if options.write_baseline:
        BASELINE.write_text(json.dumps(baseline(shared), indent=0, ensure_ascii=False) + "\n")
    else:
        say = partial(print, flush=True)
        good = measure(shared, options.part or PARTS, walks=options.walks, seconds=options.seconds, say=say)
        sys.exit(not good)
