"""Time HTTP requests with tools that no server has seen, up to the first token, on real vLLM servers.

A random model with Kimi K2's vocabulary, and tools of public MCP servers whose names, properties and descriptions are
new in every request (scripts/fetch_data.py fetches both). All servers run at the same time and take turns; those that
are not asked are suspended. It takes 15 GB of memory.
"""

import argparse
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.arguments import add_shared
from benchmarks.first_token.run import Row, measure
from benchmarks.first_token.servers import ARMS, FREE
from benchmarks.host.arms import xgrammar_tag
from benchmarks.host.workload import load
from constrained_k2.vocabulary.vocabulary import Vocabulary

_FIELDS = {"first": "first token", "longest": "longest step after it"}


def table(rows: list[Row], field: str) -> Table:
    """Format one field: medians, and what each arm adds to the unconstrained one for the same tools."""
    counts = list(dict.fromkeys(row.tools for row in rows))
    found = Table(title=f"{_FIELDS[field]}, ms: median; added to the same requests unconstrained: median (min to max)")
    found.add_column("tools")
    for count in counts:
        found.add_column(f"{count}", justify="right")
    for arm in dict.fromkeys(row.arm for row in rows):
        cells = []
        for row in rows:
            if row.arm == arm:
                middle, low, high = row.added(field)
                added = "" if arm.name == FREE else f"; {middle:+.0f} ({low:+.0f} to {high:+.0f})"
                cells.append(f"{row.median(field):.0f}{added}")
        found.add_row(arm.name, *cells)
    return found


def comparable(vocabulary: Vocabulary, tools: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return the tools that xgrammar compiles; admission decides of ours, which is part of what is measured."""
    baseline = xgrammar_tag(vocabulary)
    return tuple(tool for tool in tools if baseline.takes(tool))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_token", description=__doc__)
    add_shared(parser)
    parser.add_argument("--rounds", type=int, default=25, help="(default: %(default)s)")
    parser.add_argument("--tools", type=int, action="append", help="repeatable (default: 1, 16 and 64)")
    parser.add_argument(
        "--arm", action="append", default=[], help="only arms whose names contain this, and the free one; repeatable"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a suspended server does not end with its parent
    chosen = [arm for arm in ARMS if not options.arm or any(part in arm.name for part in options.arm)]
    if not chosen:
        parser.error(f"no arm's name contains that; the arms are: {'; '.join(arm.name for arm in ARMS)}")
    arms = [arm for arm in ARMS if arm in chosen or arm.name == FREE]
    console = Console(width=180)
    with tempfile.TemporaryDirectory() as name:
        workload = load(options.shared, Path(name) / "small")
        workload = replace(workload, tools=comparable(workload.vocabulary, workload.tools))
        console.print(f"{workload.source}; {len(workload.tools)} that every arm compiles")
        tokenizer = options.shared / "kimi_k2" / "tokenizer"
        rows: list[Row] = []
        for found in measure(
            workload,
            Path(name),
            tokenizer=tokenizer if tokenizer.is_dir() else None,
            rounds=options.rounds,
            counts=options.tools or (1, 16, 64),
            arms=arms,
        ):
            rows += found
            for field in _FIELDS:
                console.print(table(found, field))
    if len({row.tools for row in rows}) > 1:
        for field in _FIELDS:
            console.print(table(rows, field))


if __name__ == "__main__":
    main()
