"""Prints what benchmarks find, as Markdown: checks, tables, and what was not run."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Cell: TypeAlias = str | float | int | None


def number(cell: Cell) -> str:
    """Format a cell: three significant digits below 1,000, whole numbers above."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell.replace("|", "\\|").replace("\n", " ")
    if isinstance(cell, int) or abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:.3g}"


def line(cells: Iterable[Cell]) -> str:
    """Format a row of a table."""
    return f"| {' | '.join(map(number, cells))} |"


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], numbers: str = "--:") -> str:
    """Format a table; ``numbers`` aligns all columns but the first.

    Raises:
        ValueError: A row has more or fewer cells than there are columns.
    """
    lines = [line(columns), f"|---|{f'{numbers}|' * (len(columns) - 1)}"]
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"a row has {len(row)} cells: expected {len(columns)}: {row}")
        lines.append(line(row))
    return "\n".join(lines)


class Report:
    """Prints checks and tables as they come.

    Attributes:
        failed: The checks that do not hold, each with its note.
    """

    def __init__(self) -> None:
        self.failed: list[str] = []

    def check(self, what: str, *, passed: bool, note: str = "") -> None:
        """Print a check; ``note`` is its extent, or the first thing found wrong."""
        self.say(f"* {'ok' if passed else '**WRONG**'}: {what}{f' ({note})' if note else ''}")
        if not passed:
            self.failed.append(f"{what}: {note}")

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]], note: str = "") -> None:
        """Print a table."""
        self.say(f"\n**{title}**{f'. {note}' if note else ''}\n\n{table(columns, rows)}\n")

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, flush=True)
