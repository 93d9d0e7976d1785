"""Sends all samples to all arms and writes each answer as it arrives; a failure becomes a record."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation import client
from constrained_k2.evaluation.ab.arms import Arm, merged
from constrained_k2.evaluation.ab.directory import RunDirectory, lock
from constrained_k2.evaluation.answer import MAX_GAPS, ChatAnswer, Completion, NoAnswer, Record
from constrained_k2.evaluation.client import Client, NotServed, api_key_in
from constrained_k2.evaluation.judge import Judgement, judge
from constrained_k2.evaluation.sample import Sample
from constrained_k2.evaluation.server_metrics import growth, read_counters

OnAnswer = Callable[[str, Record, Judgement], None]  # receives an arm's name and each of its answers as they arrive
_RETRIED = {"connection", "rate_limited", "server_error"}
_UNREACHABLE = 5  # requests in a row without a connection, after which none is retried
_SECONDS = 30.0  # for requests besides the samples
_PROMPT_TAIL = 160  # tokens
_RAW_TOKENS = 4096  # tokens of an answer that are turned into text
_RAW_TEXT = 1 << 16  # characters of it that are stored


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """Bounds on the time, size and attempts of one request."""

    seconds: float = 600.0  # from the request to the last byte, for each attempt
    attempts: int = 4  # sent again after a failed connection, HTTP 429 or HTTP 500 to 599
    backoff: float = 1.0  # seconds before the second attempt; doubled each time
    longest_wait: float = 60.0  # seconds between attempts, whatever the server asks for
    size: int = 64 << 20  # bytes of an answer
    text: int = 1 << 20  # characters of its parts
    concurrency: int = 8  # requests at a time, over all arms


class Endpoint:
    """Sends an arm's requests; raises ``InvalidRequest`` for a missing API key or a malformed address."""

    def __init__(self, arm: Arm, limits: AttemptLimits, *, streams: bool = True) -> None:
        self.arm = arm
        self._streams = streams
        self._limits = limits
        bounds, location = client.BodyLimits(seconds=min(_SECONDS, limits.seconds)), f"arm {arm.name}"
        key = api_key_in(arm.api_key_env, location)
        self.client = Client(arm.url, key, bounds, concurrency=limits.concurrency, location=location)
        self.model = arm.model
        self.is_vllm = False
        self._detokenizes = True
        self._missed = 0

    async def open(self) -> None:
        """Look up the model, or raise ``InvalidRequest``, and whether the server is vLLM, which returns token ids."""
        problem = "the server lists no model"
        try:
            models = await self.client.models()
            self.is_vllm = any(owner.startswith("vllm") for owner in models.values())
            self.model = self.model or next(iter(models), "")
        except NoAnswer as failed:
            problem = f"the server's models cannot be listed: {failed}"
        if not self.model:
            location = f"arm {self.arm.name} at {self.arm.url}"
            raise InvalidRequest(problem, location, "Name a model (--model) if the address is right")

    async def ask(self, key: str, repetition: int, body: Mapping[str, Any]) -> tuple[Record, ChatAnswer]:
        """Send a sample's body with the arm's additions, again after some failures; the answer is empty if all fail."""
        request = merged(body, self.arm.added)
        request["model"] = self.model
        if self._streams:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.is_vllm:
            request["return_token_ids"] = True
        attempts = 1 if self._missed >= _UNREACHABLE else self._limits.attempts
        for attempt in itertools.count(1):
            started, timing = round(time.time(), 3), _Timing()
            try:
                answer = await self._attempt(request, timing)
                limit = request.get("max_completion_tokens") or request.get("max_tokens")
                record, self._missed = Record.of(answer, key, repetition, max_tokens=limit), 0
                break
            except NoAnswer as failed:
                self._missed = self._missed + 1 if failed.failure == "connection" else 0
                answer, record = ChatAnswer(), Record(key, repetition, "failed", failed.failure, str(failed))
                if attempt >= attempts or failed.failure not in _RETRIED:
                    break
                wait = self._limits.backoff * 2 ** (attempt - 1) if failed.wait is None else failed.wait
            await asyncio.sleep(min(wait, self._limits.longest_wait))
        return replace(record, attempts=attempt, started=started, **timing.fields()), answer

    async def with_text(self, record: Record, answer: ChatAnswer) -> Record:
        """The record with the text of its tokens, markers included; unchanged if the server does not detokenize."""
        if not answer.token_ids:
            return record
        raw = await self._text(answer.token_ids[-_RAW_TOKENS:])
        return replace(record, raw=raw, prompt_tail=await self._text((answer.prompt_ids or ())[-_PROMPT_TAIL:]))

    async def _text(self, ids: tuple[int, ...]) -> str:
        if ids and self._detokenizes:
            try:
                return (await self.client.detokenize(self.model, ids))[-_RAW_TEXT:]
            except NoAnswer as failed:  # the report shows the parsed answer instead
                self._detokenizes = not isinstance(failed, NotServed)
        return ""

    async def _attempt(self, request: dict[str, Any], timing: "_Timing") -> ChatAnswer:
        bounds = client.BodyLimits(self._limits.size, self._limits.seconds)
        answer = await self.client.chat_streamed(request, timing.add, whole_ok=True, limits=bounds)
        if not answer.finish_reason:
            raise NoAnswer("invalid_answer", "the answer has no finish_reason")
        calls = (part for call in answer.calls for part in call)
        length = sum(map(len, (answer.finish_reason, answer.content, answer.reasoning, *calls)))
        if length > self._limits.text:
            raise NoAnswer("too_long", f"the answer has {length} characters, more than {self._limits.text}")
        return answer


class _Timing:
    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._tokens: list[float] = []  # when the first ones came

    def add(self, event: Completion | None) -> None:
        if (event is None or event.has_tokens) and len(self._tokens) <= MAX_GAPS:
            self._tokens.append(time.perf_counter())

    def fields(self) -> dict[str, Any]:
        return {
            "ttft_ms": round((self._tokens[0] - self._start) * 1e3, 2) if self._tokens else None,
            "duration_ms": round((time.perf_counter() - self._start) * 1e3, 2),
            "gaps_ms": tuple(round((end - start) * 1e3, 2) for start, end in itertools.pairwise(self._tokens)),
        }


async def run(
    directory: RunDirectory,
    arms: Sequence[Arm],
    *,
    limits: AttemptLimits,
    retry_failed: bool = False,
    on_answer: OnAnswer = lambda *_: None,
) -> None:
    """Send the requests without a record; raises ``InvalidRequest`` if a server or the directory cannot be used.

    Each sample goes to all arms before the next sample, beginning with another arm each time, so that load, caches and
    the time of day favour none. Memory holds only the samples in flight.
    """
    with lock(directory.path):
        async with AsyncExitStack() as stack:
            endpoints, wire_format = [Endpoint(arm, limits) for arm in arms], directory.wire_format
            for endpoint in endpoints:
                await stack.enter_async_context(endpoint.client)
                await endpoint.open()
            directory.add_arms(arms)  # only once all answer, so that a wrong arm can be corrected
            tasks = _tasks(directory, [directory.done_keys(arm.name, but_failed=retry_failed) for arm in arms])
            urls = sorted({arm.url for arm in arms})
            before = {url: await read_counters(url) for url in urls}

            async def work() -> None:
                for number, sample, repetition in tasks:
                    endpoint = endpoints[number]
                    body = directory.sampling.body(sample, repetition)
                    record, answer = await endpoint.ask(sample.key, repetition, body)
                    judgement = judge(sample, record, wire_format)
                    record = await endpoint.with_text(record, answer) if judgement.kind else record
                    directory.add(endpoint.arm.name, record)
                    on_answer(endpoint.arm.name, record, judgement)

            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(limits.concurrency):
                        group.create_task(work())
            finally:
                for url in urls:
                    if grown := growth(before[url], await read_counters(url)):
                        directory.add_counters(grown)


def _tasks(directory: RunDirectory, done: Sequence[set[tuple[str, int]]]) -> Iterator[tuple[int, Sample, int]]:
    """The remaining ``(number of the arm, sample, repetition)``; all workers share it, so each is handed out once."""
    for number, sample in enumerate(directory.read_samples()):
        for repetition in range(directory.sampling.repetitions):
            for turn in range(len(done)):
                arm = (number + repetition + turn) % len(done)
                if (sample.key, repetition) not in done[arm]:
                    yield arm, sample, repetition
