"""Live progress: one bar per arm with its figures so far, on standard error."""

from collections import Counter
from collections.abc import Sequence

from rich import progress
from rich.console import Console

from constrained_k2.evaluation.ab.arms import Arm
from constrained_k2.evaluation.ab.directory import RunDirectory
from constrained_k2.evaluation.ab.latency import Latency
from constrained_k2.evaluation.answer import SUCCESS, Record
from constrained_k2.evaluation.judge import Judgement


class LiveFigures(progress.Progress):
    """The bars, shown while the block is open; nothing is printed without ``is_shown``."""

    def __init__(self, directory: RunDirectory, arms: Sequence[Arm], *, retry_failed: bool, is_shown: bool) -> None:
        columns = (
            progress.TextColumn("{task.description:>14}"),
            progress.BarColumn(bar_width=20),
            *(progress.MofNCompleteColumn(), progress.TimeElapsedColumn(), progress.TimeRemainingColumn()),
            progress.TextColumn("{task.fields[figures]}"),
        )
        super().__init__(*columns, console=Console(stderr=True), disable=not is_shown)
        self._arms: dict[str, tuple[progress.TaskID, Latency, Counter[str]]] = {}
        for arm in arms:
            done = len(directory.done_keys(arm.name, but_failed=retry_failed))
            bar = self.add_task(arm.name, total=directory.answers, completed=done, figures="")
            self._arms[arm.name] = bar, Latency(), Counter()

    def add(self, name: str, record: Record, judgement: Judgement) -> None:
        """Count an answer of the arm ``name``."""
        bar, latency, counts = self._arms[name]
        latency.add(record)
        counts.update(seen=1, in_form=judgement.counts.in_form, failed=record.status != SUCCESS)
        parts = [f"right in form {counts['in_form'] / counts['seen']:.1%}"]
        if (first := latency.ttft.quantile(0.5)) is not None:
            parts.append(f"first token {first:.0f} ms")
        if (rate := latency.tokens_per_second) is not None:
            parts.append(f"{rate:.0f} tokens/s")
        if counts["failed"]:
            parts.append(f"[red]{counts['failed']} failed[/]")
        self.update(bar, advance=1, figures=", ".join(parts))
