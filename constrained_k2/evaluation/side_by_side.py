"""The same requests to one server, unconstrained and constrained, and how it shows."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from constrained_k2.evaluation.client import UNCONSTRAINED, ask_all
from constrained_k2.evaluation.samples import Sample
from constrained_k2.evaluation.scores import Answer, Score

ARMS: Mapping[str, Mapping[str, Any]] = {"unconstrained": UNCONSTRAINED, "constrained": {}}
"""Arm -> the extra body of its requests."""

Answers = Mapping[str, Sequence[Answer]]
"""Arm -> its answers, in the order of the samples."""


async def ask_arms(url: str, samples: Sequence[Sample], console: Console) -> Answers:
    """Send the samples to every arm, one arm after the other, with a progress bar each."""
    columns = (TextColumn("{task.description:>14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    answers = {}
    with Progress(*columns, console=console) as progress:
        tasks = {arm: progress.add_task(arm, total=len(samples), start=False) for arm in ARMS}
        for arm, extra_body in ARMS.items():
            progress.start_task(tasks[arm])
            answers[arm] = await ask_all(
                url,
                samples,
                on_answer=lambda _, task=tasks[arm]: progress.advance(task),  # type: ignore[misc]
                model="kimi-k2",
                temperature=1.0,
                max_tokens=2048,
                extra_body=extra_body,
            )
    return answers


def show_transcript(console: Console, samples: Sequence[Sample], answers: Answers) -> None:
    """Show the first request that was answered with a call, as each arm answered it."""
    number = next((i for i, answer in enumerate(answers["constrained"]) if answer.calls), None)
    if number is None:
        return
    sample = samples[number]
    console.print(f"\n[bold]{sample.body['messages'][-1]['content']}[/] tool_choice: {sample.choice}", highlight=False)
    for arm in ARMS:
        answer = answers[arm][number]
        console.print(f"[bold]{arm}[/] finish_reason: {answer.finish_reason}", highlight=False)
        if answer.content:
            console.print(f"  content  {answer.content[:160]!r}", highlight=False, markup=False)
        for call_id, _, arguments in answer.calls[:3]:
            console.print(f"  call     {call_id} {arguments[:160]!r}", highlight=False, markup=False)
    console.print()


def score_table(scores: Mapping[str, Score]) -> Table:
    """The arms' scores side by side."""
    table = Table(title="One server, the same requests")
    table.add_column("")
    for arm in ARMS:
        table.add_column(arm, justify="right")

    def row(label: str, *cells: str) -> None:
        table.add_row(label, *cells)

    columns = list(scores.values())
    row("requests", *(f"{s.requests}" for s in columns))
    row("finished before max_tokens", *(_share(s.finished, s.requests) for s in columns))
    row("call due, and right calls came", *(_share(s.served, s.due) for s in columns))
    row("calls parsed", *(f"{s.calls}" for s in columns))
    row("  name declared", *(_share(s.declared, s.calls) for s in columns))
    row("  arguments valid", *(_share(s.valid, s.calls) for s in columns))
    row("  id functions.NAME:INDEX as due", *(_share(s.numbered, s.calls) for s in columns))
    row("more calls than allowed", *(f"{s.unasked}" for s in columns))
    return table


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.1%})" if whole else "none"


def write_transcripts(path: Path, samples: Sequence[Sample], answers: Answers) -> None:
    """Write one JSON object a line: the sample, and each arm's answer."""
    with path.open("w") as file:
        for number, sample in enumerate(samples):
            record = asdict(sample) | {arm: asdict(answers[arm][number]) for arm in ARMS}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
