"""Send a mixed load to a real server by each route: constrained, plain, aborted, too costly and hostile requests.

Checks that constrained calls are valid, other answers do not change, and memory stays flat. Exit code 1 if not.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.soak.load import mixed_load
from benchmarks.soak.report import measure
from benchmarks.soak.routes import ROUTES
from constrained_k2.testing import build_model


def main() -> int:
    """Send the load, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--route", choices=ROUTES, action="append", help="only this route; repeatable")
    parser.add_argument("--requests", type=int, default=500, help="(default: %(default)s)")
    parser.add_argument("--concurrency", type=int, default=32, help="requests at a time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        loads = list(mixed_load(options.requests, options.seed))
        model = build_model(Path(directory) / "model", arch="kimi_k2")
        routes = {route: ROUTES[route] for route in options.route or ROUTES}
        results = measure(model, routes, loads, Path(directory), concurrency=options.concurrency)
    return int(not all(result.is_good for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
