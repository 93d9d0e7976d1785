"""Send greedy requests to servers of several ranks and of one, with the package and without; compare the token ids.

The small model runs with tensor parallel 2, a random dense model with data parallel 2: vLLM's CPU build cannot run
mixture-of-experts models with data parallel. Exit code 1 if a call is invalid, or if answers of one rank and several
differ more often with the package than without.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.ranks.run import ARMS, STOCK, Row, greedy_samples, measure
from benchmarks.ranks.topologies import ONE_RANK, TOPOLOGIES
from benchmarks.report import table
from constrained_k2.testing import build_model
from scripts.small_model.shipped import build_small_model

SEVERAL = ("tensor parallel 2", "data parallel 2")


def printed(rows: list[Row]) -> str:
    """Format the figures."""
    columns = "", "", "answers as with one rank", "of those that vLLM keeps", "calls", "cut", "invalid or failed"
    stock = {row.topology: row.same for row in rows if row.arm == STOCK}
    lines = []
    for row in rows:
        total, kept = len(row.answers.ids), stock.get(row.topology)
        cells = ["", ""] if row.topology == ONE_RANK else [f"{len(row.same)} of {total}", ""]
        if row.topology != ONE_RANK and row.arm != STOCK and kept is not None:
            cells[1] = f"{len(row.same & kept)} of {len(kept)}"
        wrong = "" if row.arm == STOCK else f"{len(row.answers.problems)}"  # vLLM alone promises no valid calls
        lines.append([row.topology, row.arm, *cells, f"{row.answers.calls}", f"{row.answers.cut}", wrong])
    return table(columns, lines)


def is_good(rows: list[Row]) -> bool:
    """True if no constrained call is invalid and no topology differs from one rank more often than vLLM alone."""
    stock = {row.topology: row.same for row in rows if row.arm == STOCK}
    ours = [row for row in rows if row.arm != STOCK]
    return not any(row.answers.problems or len(row.same) < len(stock.get(row.topology, ())) for row in ours)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    parser.add_argument("--requests", type=int, default=400, help="(default: %(default)s)")
    parser.add_argument("--topology", choices=SEVERAL, action="append", help="only this one; repeatable")
    parser.add_argument("--arm", choices=ARMS, action="append", help="only this one; repeatable (default: all)")
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as name:
        for topology in options.topology or SEVERAL:
            directory = Path(name) / topology.replace(" ", "-")
            dense = TOPOLOGIES[topology].is_dense
            model = directory / "model"
            if dense:
                build_model(model, arch="llama")
            else:
                build_small_model(model)
            rows = measure(
                model,
                directory,
                greedy_samples(options.requests),
                topologies=(ONE_RANK, topology),
                arms=options.arm or list(ARMS),
                is_random=dense,
            )
            print(f"Greedy requests, {'a random dense model' if dense else 'the small model'}\n\n{printed(rows)}\n")
            for row in rows:
                for problem in row.answers.problems[:5] if row.arm != STOCK else ():
                    print(f"{row.topology}, {row.arm}: {problem}")
            good &= is_good(rows)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
