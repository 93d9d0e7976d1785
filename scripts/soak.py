"""A mixed load of constrained, plain, aborted, too costly and hostile requests on a real server, with each route.

.venv/bin/python scripts/soak.py [--requests 500] [--route processor] [--route backend]
"""

import argparse
import sys
import tempfile
from pathlib import Path

from constrained_k2.evaluation.soak.load import mixed_load
from constrained_k2.evaluation.soak.report import measure
from constrained_k2.evaluation.soak.routes import ROUTES
from constrained_k2.fixtures import build_model

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--route", choices=ROUTES, action="append", help="only this; may be given again")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        loads = list(mixed_load(options.requests, options.seed))
        model = build_model(Path(directory) / "model", arch="kimi_k2")
        routes = {route: ROUTES[route] for route in options.route or ROUTES}
        results = measure(model, routes, loads, Path(directory), concurrency=options.concurrency)
    sys.exit(not all(result.is_good for result in results.values()))
