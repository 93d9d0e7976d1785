"""Print every figure that the README claims of schemas (about ten minutes; needs ../shared).

.venv/bin/python scripts/measure_schemas.py [--walks 10000] [--seconds 20] [--write-baseline]
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from constrained_k2.evaluation.schemas.report import baseline, measure

ROOT = Path(__file__).resolve().parent.parent
BASELINE = ROOT / "tests" / "schema" / "baseline.json"

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
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
        sys.exit(not measure(shared, walks=options.walks, seconds=options.seconds, say=partial(print, flush=True)))
