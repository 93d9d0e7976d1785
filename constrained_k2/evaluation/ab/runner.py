"""Asks all arms all samples: the arms in turn, several requests at a time, each answer written as it comes."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass

from constrained_k2.evaluation.ab.arms import Arm
from constrained_k2.evaluation.ab.directory import RunDirectory, lock
from constrained_k2.evaluation.ab.endpoint import Endpoint, Limits
from constrained_k2.evaluation.ab.judge import Judgement, judge
from constrained_k2.evaluation.ab.records import Record, RecordFile, done_keys
from constrained_k2.evaluation.ab.sample import Sample
from constrained_k2.evaluation.server_metrics import growth, read_counters

OnAnswer = Callable[[str, Record, Judgement], None]
"""Called with an arm's name and each of its answers, as they come."""


@dataclass(frozen=True, slots=True)
class _Task:
    place: int  # of the arm
    sample: Sample
    repetition: int


async def run(
    directory: RunDirectory,
    arms: Sequence[Arm],
    *,
    limits: Limits,
    retry_failed: bool = False,
    on_answer: OnAnswer = lambda *_: None,
) -> None:
    """Ask what has not been answered yet.

    For every sample all arms are asked one after the other before the next sample comes, and each sample begins with
    another arm: so load, caches and the time of day favour none. Only so many samples are in memory as requests are
    out.

    Args:
        directory: Where the run is kept.
        arms: Whom to ask.
        limits: What one request may cost, and how many are out at a time.
        retry_failed: Ask again what failed before.
        on_answer: For live figures.

    Raises:
        InvalidRequest: A server tells no model, or the directory cannot be used.
    """
    with ExitStack() as files:
        files.enter_context(lock(directory.path))
        async with AsyncExitStack() as stack:
            endpoints = [await stack.enter_async_context(Endpoint(arm, limits)) for arm in arms]
            for endpoint in endpoints:
                await endpoint.open()
            directory.add_arms(arms)  # none that could not be asked: it may be given otherwise the next time
            paths = [directory.records_path(arm.name) for arm in arms]
            records = [files.enter_context(RecordFile(path)) for path in paths]
            done = [done_keys(path, but_failed=retry_failed) for path in paths]
            tasks = _tasks(directory, done)
            urls = sorted({arm.base_url for arm in arms})
            before = {url: await read_counters(url) for url in urls}

            async def work() -> None:
                for task in tasks:
                    endpoint = endpoints[task.place]
                    body = directory.sampling.body(task.sample, task.repetition)
                    reply = await endpoint.ask(task.sample.key, task.repetition, body)
                    judgement = judge(task.sample, reply.record)
                    record = await endpoint.text_of(reply) if judgement.kind else reply.record
                    records[task.place].append(record)
                    on_answer(endpoint.arm.name, record, judgement)

            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(limits.concurrency):
                        group.create_task(work())
            finally:
                for url in urls:
                    if grown := growth(before[url], await read_counters(url)):
                        directory.add_counters(url, grown)


def _tasks(directory: RunDirectory, done: Sequence[set[tuple[str, int]]]) -> Iterator[_Task]:
    """What is left to ask, in order; read by all workers, so each task is handed out once."""
    for number, sample in enumerate(directory.read_samples()):
        for repetition in range(directory.sampling.repetitions):
            for turn in range(len(done)):
                place = (number + repetition + turn) % len(done)
                if (sample.key, repetition) not in done[place]:
                    yield _Task(place, sample, repetition)
