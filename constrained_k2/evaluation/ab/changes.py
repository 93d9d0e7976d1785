"""Asks constrained arms once more, greedily, for what the constraint changed; apart from the timed run.

Each sample gets two answers of temperature 0: a constrained one that lists its overrides, and an unconstrained one of
the same server. The unconstrained model then tells how probable each token of either answer is.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self

import msgspec

from constrained_k2.evaluation.ab.arms import Arm, merged
from constrained_k2.evaluation.ab.directory import RecordFile, RunDirectory, bounded_lines, lock
from constrained_k2.evaluation.ab.runner import Endpoint, Limits
from constrained_k2.evaluation.answer import SUCCESS, ChatAnswer, Diagnostics, NoAnswer, Record
from constrained_k2.evaluation.sample import UNCONSTRAINED, Sample

_GREEDY = {"temperature": 0}
_OVERRIDES = {"vllm_xargs": {"constrained_k2_diagnostics": "overrides"}}
_GIVE_UP = 4  # samples without a diagnosis, before any with one


@dataclass(frozen=True, slots=True)
class Change:
    """Two greedy answers to a sample: constrained and unconstrained.

    The logarithms are those of each token's probability under the unconstrained model; empty if it does not tell.
    """

    arm: str
    key: str  # the sample's
    constrained: Record
    unconstrained: Record
    diagnostics: Diagnostics | None = None
    constrained_logprobs: tuple[float, ...] = ()
    unconstrained_logprobs: tuple[float, ...] = ()
    error: str = ""  # why a part is missing

    @property
    def is_whole(self) -> bool:
        """True if both answers and the list of overrides came."""
        both = self.constrained.status == self.unconstrained.status == SUCCESS
        return both and self.diagnostics is not None and self.diagnostics.overrides is not None

    def to_json(self) -> str:
        """One line of ``changes.jsonl``, without its end."""
        return json.dumps(msgspec.to_builtins(self))

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Read :meth:`to_json`; raises ``ValueError`` for anything else."""
        try:
            return msgspec.convert(json.loads(text), cls)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not a change: {error}") from None


def read_changes(path: Path) -> Iterator[Change]:
    """The changes of a file, without malformed lines; nothing if there is none."""
    for _, line in bounded_lines(path) if path.exists() else ():
        try:
            yield Change.from_json(line or b"")
        except ValueError:  # the last line of a killed run
            continue


def missing_changes(directory: RunDirectory, arm: Arm, count: int) -> list[Sample]:
    """Those of the first ``count`` samples that an arm was not asked for again; none if we do not constrain it."""
    if not arm.is_constrained:
        return []
    done = {change.key for change in read_changes(directory.changes_path) if change.arm == arm.name}
    return [sample for sample in islice(directory.read_samples(), count) if sample.key not in done]


async def ask_again(
    directory: RunDirectory, arms: Sequence[Arm], *, limits: Limits, count: int, say: Callable[[str], None]
) -> None:
    """Ask each arm that we constrain for the first ``count`` samples again, those without a change.

    A server that is not vLLM with this package is left alone. Raises ``InvalidRequest`` as :func:`.runner.run` does.
    """
    for arm in arms:
        if samples := missing_changes(directory, arm, count):
            await _ask_arm(directory, arm, samples, limits, say)


async def _ask_arm(
    directory: RunDirectory, arm: Arm, samples: Sequence[Sample], limits: Limits, say: Callable[[str], None]
) -> None:
    asking = replace(arm, body=merged(merged(arm.body, _GREEDY), _OVERRIDES))
    constrained = Endpoint(asking, limits, streams=False)  # a server explains whole answers at more length
    plain = replace(arm, preset="unconstrained", body=merged(merged(arm.body, _GREEDY), UNCONSTRAINED))
    unconstrained = Endpoint(plain, limits, streams=False)
    with lock(directory.path):
        async with AsyncExitStack() as stack:
            for endpoint in (constrained, unconstrained):
                await stack.enter_async_context(endpoint.client)
                await endpoint.open()
            if not constrained.is_vllm:
                return
            say(f"Asking {arm.name} again at temperature 0, {len(samples)} requests …")
            file = stack.enter_context(RecordFile(directory.changes_path))
            await _ask_all(_Asking(directory, arm.name, constrained, unconstrained), samples, file, limits.concurrency)


@dataclass(slots=True)
class _Asking:
    directory: RunDirectory
    arm: str
    constrained: Endpoint
    unconstrained: Endpoint
    failed: int = 0  # samples without a diagnosis, before the first with one
    is_diagnosed: bool = False

    async def change(self, sample: Sample) -> Change:
        """Ask for one sample."""
        body = self.directory.sampling.body(sample, 0)
        (record, answer), (plain, other) = await asyncio.gather(
            self.constrained.ask(sample.key, 0, body), self.unconstrained.ask(sample.key, 0, body)
        )
        change = Change(self.arm, sample.key, record, plain, answer.diagnostics, error=record.error or plain.error)
        if not change.is_whole:
            self.failed += not self.is_diagnosed
            return change if change.error else replace(change, error="the server lists no overrides")
        self.is_diagnosed = True
        try:
            found = await asyncio.gather(self._logprobs(answer), self._logprobs(other))
        except NoAnswer as failed:
            return replace(change, error=failed.error)
        return replace(change, constrained_logprobs=found[0], unconstrained_logprobs=found[1])

    async def _logprobs(self, answer: ChatAnswer) -> tuple[float, ...]:
        if not answer.prompt_ids or not answer.token_ids:
            raise NoAnswer("invalid_answer", "the server returns no token ids")
        ids, fields = (*answer.prompt_ids, *answer.token_ids), dict[str, Any](UNCONSTRAINED)
        client, model = self.unconstrained.client, self.unconstrained.model
        found = await client.logprobs(model, ids, len(answer.token_ids), fields)
        return tuple(round(each, 5) for each in found)


async def _ask_all(asking: _Asking, samples: Sequence[Sample], file: RecordFile, concurrency: int) -> None:
    waiting = iter(samples)

    async def work() -> None:
        for sample in waiting:
            if asking.failed >= _GIVE_UP and not asking.is_diagnosed:
                return
            file.append(await asking.change(sample))

    async with asyncio.TaskGroup() as group:
        for _ in range(max(1, concurrency // 2)):  # each asks two at a time
            group.create_task(work())
