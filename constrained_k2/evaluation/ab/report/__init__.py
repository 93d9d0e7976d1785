"""A run's report: for a terminal, a pull request, a browser and a script."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from constrained_k2.evaluation.ab.report.contrast import contrast
from constrained_k2.evaluation.ab.report.markdown import to_markdown
from constrained_k2.evaluation.ab.report.page import to_html
from constrained_k2.evaluation.ab.report.tables import figure_table
from constrained_k2.evaluation.ab.results import Results

_WIDTH = 120  # characters, where no terminal says how many it has


def write_reports(results: Results) -> list[Path]:
    """Write ``report.md``, ``report.html`` and ``scores.json`` into the run's directory.

    Returns:
        Where they are.
    """
    texts = {
        "report.md": to_markdown(results),
        "report.html": to_html(results),
        "scores.json": json.dumps(finite(results.to_json()), indent=2) + "\n",
    }
    paths = []
    for name, text in texts.items():
        path = results.directory.path / name
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        paths.append(path)
    return paths


def show(results: Results, paths: Sequence[Path]) -> None:
    """Print an answer that the constraint set right, the figures, what was found, and where the reports are."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    for line in contrast(results):
        console.print(Text(line))
    console.print()
    figures = figure_table(results, is_short=True)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, title in enumerate(figures.header):
        table.add_column(Text(title), justify="right" if number else "left")
    for row in figures.rows:
        table.add_row(*map(Text, row))
    console.print(table)
    console.print(Text(figures.note, style="dim"))
    for finding in results.findings:
        console.print(Text(finding, style="red"))
    if not results.findings:
        console.print(Text("Nothing wrong was found.", style="green"))
    for path in paths:
        console.print(Text(str(path)))


def finite(value: Any) -> Any:
    """The same with null for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
