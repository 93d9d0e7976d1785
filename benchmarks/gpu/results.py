"""The results of the GPU benchmark as plain values: checks, tables, and what was not run."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Cell: TypeAlias = str | float | int | None


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold.

    Attributes:
        what: The thing that was checked.
        passed: True if it holds.
        note: The extent of the check, or the first thing found wrong.
    """

    what: str
    passed: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class NotRun:
    """Something that was not measured, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Table:
    """Measured figures.

    Attributes:
        title: What the table shows, with the unit of its numbers.
        columns: The header; the first column names the rows.
        rows: Raw numbers, or texts. None is a figure that was not measured.
        note: The way it was measured.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {self.title!r} has {len(row)} cells: expected {len(self.columns)}")


@dataclass(slots=True)
class PartResult:
    """The results of one part.

    Attributes:
        name: The part.
        checks: What must hold.
        tables: The figures.
        not_run: What was left out.
        seconds: The wall time.
    """

    name: str
    checks: list[Check] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> list[Check]:
        """The checks that do not hold."""
        return [check for check in self.checks if not check.passed]

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "PartResult":
        """Read what :func:`dataclasses.asdict` and JSON made of a result."""
        return cls(
            value["name"],
            [Check(**check) for check in value["checks"]],
            [
                Table(table["title"], tuple(table["columns"]), tuple(map(tuple, table["rows"])), table["note"])
                for table in value["tables"]
            ],
            [NotRun(**entry) for entry in value["not_run"]],
            value["seconds"],
        )


@dataclass(slots=True)
class Figures:
    """The results of a run.

    Attributes:
        machine: Hardware, driver and versions, by name.
        options: The options of the command.
        parts: One for each part that was asked for.
    """

    machine: dict[str, str]
    options: dict[str, Any]
    parts: list[PartResult] = field(default_factory=list)

    @property
    def failed(self) -> list[Check]:
        """The checks of all parts that do not hold."""
        return [check for part in self.parts for check in part.failed]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


class Recorder:
    """Takes a part's results and writes them to a file after each one, so that a part that is ended leaves them."""

    def __init__(self, name: str, path: Path) -> None:
        self.result = PartResult(name)
        self._path = path
        self._write()

    def check(self, what: str, *, passed: bool, note: str = "") -> None:
        """Add a check."""
        self.result.checks.append(Check(what, passed, note))
        print(f"  {'ok' if passed else 'WRONG'}: {what}{f' ({note})' if note else ''}", flush=True)
        self._write()

    def table(self, table: Table) -> None:
        """Add a table."""
        self.result.tables.append(table)
        print(f"  measured: {table.title}", flush=True)
        self._write()

    def not_run(self, what: str, why: str) -> None:
        """Add something that was left out."""
        self.result.not_run.append(NotRun(what, why))
        print(f"  not run: {what}: {why}", flush=True)
        self._write()

    def say(self, text: str) -> None:
        """Print a line of progress."""
        print(f"  {text} …", flush=True)

    def _write(self) -> None:
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self.result)))
        part.replace(self._path)
