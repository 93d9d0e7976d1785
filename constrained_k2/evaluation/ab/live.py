"""A progress bar an arm, with figures as they come."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from constrained_k2.evaluation.ab.arms import Arm
from constrained_k2.evaluation.ab.directory import RunDirectory
from constrained_k2.evaluation.ab.judge import Judgement
from constrained_k2.evaluation.ab.latency import Latency
from constrained_k2.evaluation.ab.records import SUCCESS, Record, done_keys


class LiveFigures:
    """Shows how far a run is, on standard error, while the block is open.

    Args:
        directory: The run.
        arms: Its arms.
        is_shown: Whether to show anything.
    """

    def __init__(self, directory: RunDirectory, arms: Sequence[Arm], *, is_shown: bool = True) -> None:
        columns = (
            TextColumn("{task.description:>14}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), disable=not is_shown)
        total = directory.samples * directory.sampling.repetitions
        self._bars = {
            arm.name: self._progress.add_task(
                arm.name, total=total, completed=len(done_keys(directory.records_path(arm.name))), figures=""
            )
            for arm in arms
        }
        self._latency = {arm.name: Latency() for arm in arms}
        self._in_form = dict.fromkeys(self._bars, 0)
        self._failed = dict.fromkeys(self._bars, 0)
        self._seen = dict.fromkeys(self._bars, 0)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def add(self, arm: str, record: Record, judgement: Judgement) -> None:
        """Count one answer."""
        self._latency[arm].add(record)
        self._in_form[arm] += judgement.counts.in_form
        self._failed[arm] += record.status != SUCCESS
        self._seen[arm] += 1
        self._progress.update(self._bars[arm], advance=1, figures=self._figures(arm))

    def _figures(self, arm: str) -> str:
        latency = self._latency[arm]
        parts = [f"right in form {self._in_form[arm] / self._seen[arm]:.1%}"]
        if (first := latency.ttft.quantile(0.5)) is not None:
            parts.append(f"first token {first:.0f} ms")
        if (rate := latency.tokens_per_second) is not None:
            parts.append(f"{rate:.0f} tokens/s")
        if self._failed[arm]:
            parts.append(f"[red]{self._failed[arm]} failed[/]")
        return ", ".join(parts)
