"""Decode steps a second and the time to a first token on real vLLM servers, by each route and without (15 minutes).

.venv/bin/python scripts/bench_server.py [--tokenizer ../shared/kimi_k2/tokenizer] [--rounds 5] [--arm tools,]
"""

import argparse
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from constrained_k2.evaluation.end_to_end import Row, arms_named, measure
from constrained_k2.evaluation.standin.build import build_stand_in
from constrained_k2.fixtures import build_model


def table(rows: list[Row]) -> Table:
    """The figures for a person."""
    found = Table(title="Whole servers, interleaved; ratio: to the same requests unconstrained, by rounds")
    columns = "at a time", "", "steps/s", "ratio (95 %)", "median (least to most)", "first token, ms", "in masks"
    for column in columns:
        found.add_column(column, justify="left" if not column else "right")
    for row in rows:
        least, most = row.ratios[0], row.ratios[-1]
        middle = row.ratios[len(row.ratios) // 2]
        mean, low, high = row.ratio
        ratio = (f"{mean:.3f} ({low:.3f} to {high:.3f})", f"{middle:.3f} ({least:.3f} to {most:.3f})")
        if row.arm.name == row.arm.baseline:
            ratio = ("1", "")
        cells = (f"{row.steps_per_second:.1f}", *ratio, f"{1e3 * row.first_token:.1f}", f"{100 * row.masks:.2f} %")
        found.add_row(f"{row.concurrency}", row.arm.name, *cells)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, help="a random model over this vocabulary, in place of the stand-in")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, action="append", help="may be given again; 1, 8 and 32 without")
    parser.add_argument(
        "--arm", action="append", default=[], help="only those whose names hold this, and their baselines; repeatable"
    )
    options = parser.parse_args()
    try:
        arms = arms_named(options.arm)
    except ValueError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        model = (
            build_stand_in(directory / "model")
            if options.tokenizer is None
            else build_model(directory / "model", arch="kimi_k2", tokenizer=options.tokenizer)
        )
        rows = measure(
            model, directory, rounds=options.rounds, concurrencies=options.concurrency or (1, 8, 32), arms=arms
        )
    Console(width=150).print(table(rows))
