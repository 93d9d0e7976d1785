"""Formats the figures as one Markdown page."""

from collections.abc import Iterator, Sequence

from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.results import Cell, Figures, PartResult, Table

_TITLES = {"kernels": "Kernels", "uploads": "Uploads and host time of a step", "vllm": "Whole engines"}


def page(figures: Figures) -> str:
    """Format the page: the verdict, the machine, then each part with its checks, tables and what was not run."""
    return "\n".join(_page(figures)) + "\n"


def _page(figures: Figures) -> Iterator[str]:
    checks = sum(len(part.checks) for part in figures.parts)
    failed = figures.failed
    left_out = sum(len(part.not_run) for part in figures.parts)
    yield "# GPU benchmark"
    yield ""
    verdict = f"{checks - len(failed)} of {checks} checks passed."
    if failed:
        verdict = f"**{verdict} {len(failed)} failed.**"
    yield f"{verdict} Not run: {left_out}. Command: `{_command(figures)}`."
    if figures.options["interpret"]:
        yield ""
        yield "Kernels ran in Triton's interpreter on a CPU: this page shows no times of a GPU."
    yield ""
    yield "| machine | |"
    yield "|---|---|"
    for name, value in figures.machine.items():
        yield _line([name, value])
    for part in figures.parts:
        yield ""
        yield from _part(part)


def _command(figures: Figures) -> str:
    options = figures.options
    parts = "" if options["parts"] == [*PARTS] else "".join(f" --part {name}" for name in options["parts"])
    model = f" --model {options['model']}" if options["model"] else ""
    interpret = " --interpret" if options["interpret"] else ""
    return f"python -m benchmarks.gpu{parts} --minutes {options['minutes']:g}{model}{interpret}"


def _part(part: PartResult) -> Iterator[str]:
    yield f"## {_TITLES.get(part.name, part.name)}"
    yield ""
    yield f"{part.seconds:.0f} s."
    if part.checks:
        yield ""
        yield "| must hold | holds | extent, or the first thing found wrong |"
        yield "|---|---|---|"
        for check in part.checks:
            yield _line([check.what, "yes" if check.passed else "**no**", check.note])
    for table in part.tables:
        yield ""
        yield from _table(table)
    if part.not_run:
        yield ""
        for entry in part.not_run:
            yield f"* not run: {entry.what}: {entry.why}"


def _table(table: Table) -> Iterator[str]:
    yield f"**{table.title}**{f'. {table.note}' if table.note else ''}"
    yield ""
    yield _line(table.columns)
    yield f"|---|{'--:|' * (len(table.columns) - 1)}"
    for row in table.rows:
        yield _line([number(cell) for cell in row])


def number(cell: Cell) -> str:
    """Format a cell: three significant digits below 1,000, whole numbers above."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) or abs(cell) >= 1000:
        return f"{cell:,.0f}"
    if cell == 0:
        return "0"
    return f"{cell:.3g}" if abs(cell) < 100 else f"{cell:.0f}"


def _line(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(escaped)} |"
