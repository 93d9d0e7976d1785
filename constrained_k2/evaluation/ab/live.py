"""Live progress: one bar per arm with its figures so far, on standard error."""

from collections.abc import Sequence

from rich import progress
from rich.console import Console

from constrained_k2.evaluation.ab.arms import Arm
from constrained_k2.evaluation.ab.directory import RunDirectory, done_keys
from constrained_k2.evaluation.ab.latency import Latency
from constrained_k2.evaluation.answer import SUCCESS, Record
from constrained_k2.evaluation.judge import Judgement


class LiveFigures(progress.Progress):
    def __init__(self, directory: RunDirectory, arms: Sequence[Arm], *, is_shown: bool = True) -> None:
        columns = (
            progress.TextColumn("{task.description:>14}"),
            progress.BarColumn(bar_width=20),
            *(progress.MofNCompleteColumn(), progress.TimeElapsedColumn(), progress.TimeRemainingColumn()),
            progress.TextColumn("{task.fields[figures]}"),
        )
        super().__init__(*columns, console=Console(stderr=True), disable=not is_shown)
        self._arms: dict[str, _ArmProgress] = {}
        for arm in arms:
            done = len(done_keys(directory.records_path(arm.name)))
            bar = self.add_task(arm.name, total=directory.answers, completed=done, figures="")
            self._arms[arm.name] = _ArmProgress(bar)

    def add(self, name: str, record: Record, judgement: Judgement) -> None:
        arm = self._arms[name]
        arm.latency.add(record)
        arm.seen += 1
        arm.in_form += judgement.counts.in_form
        arm.failed += record.status != SUCCESS
        parts = [f"right in form {arm.in_form / arm.seen:.1%}"]
        if (first := arm.latency.ttft.quantile(0.5)) is not None:
            parts.append(f"first token {first:.0f} ms")
        if (rate := arm.latency.tokens_per_second) is not None:
            parts.append(f"{rate:.0f} tokens/s")
        if arm.failed:
            parts.append(f"[red]{arm.failed} failed[/]")
        self.update(arm.bar, advance=1, figures=", ".join(parts))


class _ArmProgress:
    def __init__(self, bar: progress.TaskID) -> None:
        self.bar = bar
        self.latency = Latency()
        self.seen = self.in_form = self.failed = 0
