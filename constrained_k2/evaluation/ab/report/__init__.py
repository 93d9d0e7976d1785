"""Reports of a run: on the terminal, as Markdown, as one HTML page, and as JSON.

The Markdown is for a pull request. The page loads no other files. The JSON (``scores.json``) is for scripts.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from constrained_k2.evaluation.ab.figures import FIGURES
from constrained_k2.evaluation.ab.report import plots
from constrained_k2.evaluation.ab.report.examples import as_html, as_markdown, contrast, examples, shown
from constrained_k2.evaluation.ab.report.tables import all_tables, figure_table, telling_lines
from constrained_k2.evaluation.ab.results import Results
from constrained_k2.explain.page import templates_of

_WIDTH = 120  # characters, if standard output is not a terminal
_TILES = {"schema_accuracy", "tool_call_f1", "valid", "right", "argument_match", "optional_recall"}
_PLOTS = {"Figures": plots.accuracy, "Failures": plots.failures, "Latency": plots.latencies}


def write_reports(results: Results) -> list[Path]:
    """Write ``report.md``, ``report.html`` and ``scores.json`` into the run's directory; return their paths."""
    texts = {
        "report.md": to_markdown(results),
        "report.html": to_html(results),
        "scores.json": json.dumps(results.to_json(), indent=2, allow_nan=False) + "\n",
    }
    paths = [results.directory.path / name for name in texts]
    for path in paths:
        path.write_text(texts[path.name], encoding="utf-8", errors="backslashreplace")
    return paths


def show(results: Results, paths: Sequence[Path]) -> None:
    """Print a contrast, the figures, the findings and the reports' ``paths`` to standard output."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    for line in contrast(results):
        console.print(Text(line))
    console.print()
    figures = figure_table(results, is_short=True)
    columns = (Column(Text(title), justify="right") for title in figures.columns)
    table = Table("", *columns, box=None, header_style="bold", pad_edge=False)
    for row in figures.rows:
        table.add_row(*map(Text, row))
    console.print(table)
    console.print(Text(figures.note, style="dim"))
    color = "red" if results.findings else "green" if results.constrained else "dim"
    for line in (results.headline, *results.findings):
        console.print(Text(line, style=color))
    for path in paths:
        console.print(Text(str(path)))
    for line in telling_lines(results):
        console.print(Text(line))


def to_html(results: Results) -> str:
    """Render the page.

    Every value that the template prints is escaped (``finalize``). Should that ever fail, the page's policy allows one
    script, by its digest, and loads nothing.
    """
    tables = list(all_tables(results))
    drawn = {table.title: _PLOTS[table.title](results) for table in tables if table.title in _PLOTS}
    return _render(
        "page.html.j2",
        as_html,
        results=results,
        tables=tables,
        tiles={figure.title for figure in FIGURES if figure.name in _TILES},
        plots=drawn,
        kinds=sorted({kind for result in results.arms.values() for kind in result.examples}),
        examples=examples(results),
    )


def to_markdown(results: Results) -> str:
    """Render the report for a pull request; text of servers is escaped."""
    return _render("report.md.j2", as_markdown, results=results, tables=all_tables(results))


def _render(template: str, escape: Callable[[object], str], **variables: Any) -> str:
    environment = templates_of(__package__, escape, shown=shown)
    return environment.get_template(template).render(**variables)
