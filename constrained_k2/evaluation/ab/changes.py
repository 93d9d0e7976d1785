"""Asks constrained arms again at temperature 0, to find out what the constraint changed.

This is not part of the timed run. Each sample gets two answers from one server, constrained and unconstrained. The
unconstrained model then tells how probable each token of the constrained answer is, and its overrides are found here.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import islice

from constrained_k2.evaluation.ab.arms import Arm, merged
from constrained_k2.evaluation.ab.directory import Change, RunDirectory, lock
from constrained_k2.evaluation.ab.runner import AttemptLimits, Endpoint
from constrained_k2.evaluation.answer import NoAnswer
from constrained_k2.evaluation.explained import explained
from constrained_k2.evaluation.sample import UNCONSTRAINED, Sample
from constrained_k2.explain.turn import TurnExplainer

_GREEDY = {"temperature": 0}
_GIVE_UP = 4  # samples without an explanation, before any with one


def missing_changes(directory: RunDirectory, arm: Arm, count: int) -> list[Sample]:
    """Those of the first ``count`` samples that an arm was not asked for again; none if we do not constrain it."""
    if not arm.is_constrained:
        return []
    done = {change.key for change in directory.changes() if change.arm == arm.name}
    return [sample for sample in islice(directory.read_samples(), count) if sample.key not in done]


async def ask_again(  # noqa: PLR0913 - what is asked, and how
    directory: RunDirectory,
    arms: Sequence[Arm],
    explainer: TurnExplainer,
    *,
    limits: AttemptLimits,
    count: int,
    say: Callable[[str], None],
) -> None:
    """Ask each arm that we constrain for the first ``count`` samples again, those without a change.

    A server that is not vLLM is left alone. Raises ``InvalidRequest`` as :func:`.runner.run` does.
    """
    for arm in arms:
        if samples := missing_changes(directory, arm, count):
            with lock(directory.path):
                await _Asking(directory, arm, explainer, limits).ask(samples, limits.concurrency, say)


class _Asking:
    def __init__(self, directory: RunDirectory, arm: Arm, explainer: TurnExplainer, limits: AttemptLimits) -> None:
        self._directory = directory
        self._explainer = explainer
        body = merged(arm.body, _GREEDY)
        plain = replace(arm, preset="unconstrained", body=merged(body, UNCONSTRAINED))
        self._constrained = Endpoint(replace(arm, body=body), limits, streams=False)
        self._unconstrained = Endpoint(plain, limits, streams=False)
        self._failed = 0  # samples without an explanation, before the first with one
        self._is_explained = False

    async def ask(self, samples: Sequence[Sample], concurrency: int, say: Callable[[str], None]) -> None:
        """Ask for these samples, and store each change as it comes."""
        async with AsyncExitStack() as stack:
            for endpoint in (self._constrained, self._unconstrained):
                await stack.enter_async_context(endpoint.client)
                await endpoint.open()
            if not self._constrained.is_vllm:
                return
            say(f"Asking {self._constrained.arm.name} again at temperature 0, {len(samples)} requests …")
            waiting = iter(samples)
            async with asyncio.TaskGroup() as group:
                for _ in range(max(1, concurrency // 2)):  # each asks two at a time
                    group.create_task(self._work(waiting))

    async def _work(self, waiting: Iterator[Sample]) -> None:
        for sample in waiting:
            if self._failed >= _GIVE_UP and not self._is_explained:
                return
            self._directory.add_change(await self._change(sample))

    async def _change(self, sample: Sample) -> Change:
        body = self._directory.sampling.body(sample, 0)
        (record, answer), (plain, _) = await asyncio.gather(
            self._constrained.ask(sample.key, 0, body), self._unconstrained.ask(sample.key, 0, body)
        )
        change = Change(self._constrained.arm.name, sample.key, record, plain, error=record.error or plain.error)
        client, model = self._unconstrained.client, self._unconstrained.model
        sent = merged(body, self._constrained.arm.added)
        try:
            if not change.error:
                view, logprobs = await explained(client, self._explainer, model, sent, answer)
        except NoAnswer as failed:
            change = replace(change, error=str(failed))
        if change.error:
            self._failed += not self._is_explained
            return change
        self._is_explained = True
        if refused := [each for each in view.overrides if each.written is None]:
            problem = f"the mask here forbids what the server wrote at {refused[0].place}: another policy or budget"
            return replace(change, error=problem)
        return replace(
            change,
            overrides=tuple(view.overrides),
            examined=view.examined_rows or 0,
            constrained_logprobs=logprobs,
            chances=tuple(view.chances),
        )
