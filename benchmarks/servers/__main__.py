"""Measure decode steps a second and time to first token on real vLLM servers, by each route and without.

About 15 minutes. All servers run at the same time and take turns; those that are not asked are suspended.
"""

import argparse
import signal
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.servers.run import Row, arms_named, measure
from constrained_k2.evaluation.bundled import build_demo_model
from constrained_k2.testing import build_model


def table(rows: list[Row]) -> Table:
    """Format the figures."""
    found = Table(title="Whole servers, interleaved; ratio: to the same requests unconstrained, by rounds")
    columns = "at a time", "", "steps/s", "ratio (95 %)", "median (min to max)", "first token, ms", "in masks"
    for column in columns:
        found.add_column(column, justify="left" if not column else "right")
    for row in rows:
        mean, low, high = row.ratio
        middle = row.ratios[len(row.ratios) // 2]
        ratio = (
            f"{mean:.3f} ({low:.3f} to {high:.3f})",
            f"{middle:.3f} ({row.ratios[0]:.3f} to {row.ratios[-1]:.3f})",
        )
        if row.arm.name == row.arm.baseline:
            ratio = ("1", "")
        cells = (f"{row.steps_per_second:.1f}", *ratio, f"{1e3 * row.first_token:.1f}", f"{100 * row.masks:.2f} %")
        found.add_row(f"{row.concurrency}", row.arm.name, *cells)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.servers", description=__doc__)
    parser.add_argument("--tokenizer", type=Path, help="use a random model with this vocabulary, not the demo model")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument(
        "--concurrency", type=int, action="append", help="requests at a time; repeatable (default: 1, 8 and 32)"
    )
    parser.add_argument(
        "--arm", action="append", default=[], help="only arms whose names contain this, and their baselines; repeatable"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a suspended server does not end with its parent
    try:
        arms = arms_named(options.arm)
    except ValueError as error:
        parser.error(str(error))
    concurrencies = options.concurrency or (1, 8, 32)
    with tempfile.TemporaryDirectory() as name:
        directory, model = Path(name), Path(name) / "model"
        if options.tokenizer is None:
            build_demo_model(model)
        else:
            build_model(model, arch="kimi_k2", tokenizer=options.tokenizer)
        rows = measure(model, directory, rounds=options.rounds, concurrencies=concurrencies, arms=arms)
    Console(width=150).print(table(rows))


if __name__ == "__main__":
    main()
