"""The results of checks, printed for people or as JSON for scripts."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

# fault: requests are served wrong. warning: worth knowing, but served right as far as observed. cannot tell: the server
# does not return what the check needs.
Verdict = Literal["ok", "warning", "fault", "cannot tell"]
_COLORS: dict[Verdict, str] = {"ok": "green", "warning": "yellow", "fault": "bold red", "cannot tell": "cyan"}


class Finding(NamedTuple):
    """The result of a check."""

    verdict: Verdict
    seen: str  # what the server did
    remedy: str = ""  # the flag, version or setting to change


ok = partial(Finding, "ok")
fault = partial(Finding, "fault")


class Result(NamedTuple):
    """A finding under the name and the title of its check."""

    check: str
    title: str
    finding: Finding


def show(console: Console, results: Sequence[Result]) -> None:
    """Print a row a check, then each remedy once, then the counts."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("check", no_wrap=True)
    table.add_column("seen", overflow="fold")
    remedies: dict[str, list[str]] = {}
    for _, title, (verdict, seen, remedy) in results:
        table.add_row(Text(verdict, style=_COLORS[verdict]), Text(title), Text(seen))
        if remedy:
            remedies.setdefault(remedy, []).append(title)
    console.print(table)
    for remedy, titles in remedies.items():
        console.print(Text(f"\n{', '.join(titles)}", style="bold"))
        console.print(Text(f"  {remedy}."))
    summary = Text("\n")
    for verdict, count in counts(results).items():
        summary.append(f"{count} {verdict}  ", style=_COLORS[verdict] if count else "dim")
    console.print(summary)


def to_json(url: str, model: str, results: Sequence[Result]) -> str:
    """The output of ``--json``."""
    findings = [{"check": check, "title": title} | finding._asdict() for check, title, finding in results]
    return json.dumps({"url": url, "model": model, "counts": counts(results), "findings": findings}, indent=2)


def counts(results: Sequence[Result]) -> dict[Verdict, int]:
    """Verdict -> number of checks, zeros included."""
    verdicts = [result.finding.verdict for result in results]
    return {verdict: verdicts.count(verdict) for verdict in _COLORS}
