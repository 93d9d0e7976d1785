"""The report for a pull request."""

from collections.abc import Iterator

from constrained_k2.evaluation.ab.report.tables import Table, all_tables
from constrained_k2.evaluation.ab.report.text import as_markdown
from constrained_k2.evaluation.ab.results import Results


def to_markdown(results: Results) -> str:
    """The whole report."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Results) -> Iterator[str]:
    run = results.directory
    yield "# Constrained against unconstrained"
    yield ""
    yield f"{as_markdown(run.source)}: {run.samples} samples, arms {', '.join(map(as_markdown, results.arms))}."
    if run.bad_lines[0]:
        yield f"{run.bad_lines[0]} lines of the source are malformed and were left out."
    yield ""
    if results.findings:
        yield "**Look into:**"
        yield ""
        yield from (f"* {as_markdown(finding)}" for finding in results.findings)
    else:
        yield "Nothing wrong was found."
    for table in all_tables(results):
        yield from ("", f"## {as_markdown(table.title)}", "")
        yield from _table(table)


def _table(table: Table) -> Iterator[str]:
    if table.is_long:
        yield from ("<details><summary>Show</summary>", "")
    yield f"| {' | '.join(as_markdown(cell) for cell in table.header)} |"
    yield f"|---|{'--:|' * (len(table.header) - 1)}"
    for row in table.rows:
        yield f"| {' | '.join(as_markdown(cell) for cell in row)} |"
    if table.note:
        yield from ("", as_markdown(table.note))
    if table.is_long:
        yield from ("", "</details>")
