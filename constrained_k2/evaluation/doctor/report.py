"""Findings for people and for scripts."""

import json
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from constrained_k2.evaluation.doctor.finding import VERDICTS, Result, Verdict

_COLORS: dict[Verdict, str] = {"ok": "green", "warning": "yellow", "fault": "bold red", "cannot tell": "cyan"}


def show(console: Console, results: Sequence[Result]) -> None:
    """Print a table of what was seen, then each remedy once with what it is for, and the counts."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("check", no_wrap=True)
    table.add_column("seen", overflow="fold")
    remedies: dict[str, list[str]] = {}
    for result in results:
        finding = result.finding
        table.add_row(Text(finding.verdict, style=_COLORS[finding.verdict]), Text(result.title), Text(finding.seen))
        if finding.remedy:
            remedies.setdefault(finding.remedy, []).append(result.title)
    console.print(table)
    for remedy, titles in remedies.items():
        console.print(Text(f"\n{', '.join(titles)}", style="bold"))
        console.print(Text(f"  {remedy}."))
    summary = Text("\n")
    for verdict, count in counts(results).items():
        summary.append(f"{count} {verdict}  ", style=_COLORS[verdict] if count else "dim")
    console.print(summary)


def to_json(url: str, model: str, results: Sequence[Result]) -> str:
    """All of it as one JSON object."""
    found = {"url": url, "model": model, "counts": counts(results), "findings": [r.to_json() for r in results]}
    return json.dumps(found, indent=2)


def counts(results: Sequence[Result]) -> dict[Verdict, int]:
    """Verdict -> how many findings have it."""
    found = Counter(result.finding.verdict for result in results)
    return {verdict: found[verdict] for verdict in VERDICTS}
