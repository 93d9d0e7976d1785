"""Sends the mixed load and judges the answers."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

from benchmarks.soak.load import Load
from constrained_k2.evaluation.answer import NoAnswer, Record, StreamReader, read_whole
from constrained_k2.evaluation.judge import judge

_MEBIBYTE = 1 << 20
_MEASURED_EVERY = 500  # requests between two measurements of memory


@dataclass(slots=True)
class Soak:
    """The results of a load.

    Attributes:
        statuses: ``(kind, outcome)`` -> count; the outcome is an HTTP status, ``aborted`` or an error's class.
        finished: Constrained answers that were not cut by ``max_tokens``.
        calls: Calls in them.
        problems: What was wrong, one line each.
        texts: Number of the request -> its answer, for requests that are compared between servers.
        memory: ``(requests done, MiB)`` resident in all of the server's processes.
        seconds: Duration.
    """

    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    finished: int = 0
    calls: int = 0
    problems: list[str] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict, repr=False)
    memory: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0


async def soak(
    url: str,
    loads: Iterable[Load],
    *,
    concurrency: int,
    pid: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Soak:
    """Send a load.

    Args:
        url: The server's address, without ``/v1``.
        loads: The requests.
        concurrency: Requests at a time.
        pid: The server's process, whose memory is measured with its children's; None to skip.
        say: Receives progress messages.
    """
    result = Soak()
    slots = asyncio.Semaphore(concurrency)
    start, done = time.monotonic(), 0
    limits = httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:

        async def one(load: Load) -> None:
            async with slots:
                await _send(client, load, result)

        for chunk in _chunks(loads, _MEASURED_EVERY):
            await asyncio.gather(*map(one, chunk))
            done += len(chunk)
            if pid is not None:
                result.memory.append((done, _resident_mebibytes(pid)))
                say(f"{done} requests, {result.memory[-1][1]:.0f} MiB, {len(result.problems)} problems")
        try:
            health = str((await client.get("/health")).status_code)
        except httpx.HTTPError as error:
            health = type(error).__name__
        if health != "200":
            result.problems.append(f"the server's health is HTTP {health}")
    result.seconds = time.monotonic() - start
    return result


def _chunks(loads: Iterable[Load], size: int) -> Iterator[list[Load]]:
    chunk: list[Load] = []
    for load in loads:
        chunk.append(load)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _resident_mebibytes(pid: int) -> float:
    """Return the resident memory of a process and its descendants."""
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    return sum(float(member.memory_info().rss) for member in family) / _MEBIBYTE


async def _send(client: httpx.AsyncClient, load: Load, result: Soak) -> None:
    """Send one request and judge its answer."""
    try:
        status, answer = await (_stream if load.body.get("stream") else _whole)(client, load)
    except (httpx.HTTPError, ValueError, RecursionError) as error:  # connection errors, or an event that is not JSON
        status, answer = type(error).__name__, str(error)
    result.statuses[load.kind, status] += 1
    where = f"#{load.number} {load.kind}: HTTP {status}"
    if load.expect == "refused":
        if status != "400":
            result.problems.append(f"{where}, not 400")
    elif load.expect == "served":
        if status not in {"200", "400", "aborted"}:
            result.problems.append(f"{where}: {json.dumps(answer)[:200]}")
    elif status != "200":
        result.problems.append(f"{where}: {json.dumps(answer)[:200]}")
    else:
        try:
            _judge(load, answer, result)
        except NoAnswer as error:
            result.problems.append(f"{where}: {error}")


async def _whole(client: httpx.AsyncClient, load: Load) -> tuple[str, Any]:
    """Return the status and JSON of an answer."""
    response = await client.post(load.path, json=load.body)
    return str(response.status_code), _decoded(response)


async def _stream(client: httpx.AsyncClient, load: Load) -> tuple[str, Any]:
    """Return the status and events of a stream, or abort it."""
    events: list[Any] = []
    async with client.stream("POST", load.path, json=load.body) as response:
        if response.status_code != 200:
            await response.aread()
            return str(response.status_code), _decoded(response)
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                return "200", events
            if not line.startswith("data: "):
                continue
            events.append(json.loads(line.removeprefix("data: ")))
            if isinstance(events[-1], dict) and "error" in events[-1]:
                return "error in the stream", events[-1]
            if load.abort_after is not None and len(events) >= load.abort_after:
                return "aborted", events
    return "stream without [DONE]", events


def _decoded(response: httpx.Response) -> Any:
    """Return a body as JSON, or as text if it is not JSON."""
    try:
        return response.json()
    except ValueError:
        return response.text


def _judge(load: Load, answer: Any, result: Soak) -> None:
    """Judge and count an answer of status 200.

    Raises:
        NoAnswer: The answer does not have the form of a chat completion.
    """
    if load.expect == "same":
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise NoAnswer("invalid_answer", "the answer has no choices")
        result.texts[load.number] = json.dumps([_stable(choice) for choice in choices])
        return
    assert load.sample is not None
    if load.body.get("stream"):
        reader = StreamReader()
        for event in answer:
            reader.add(event)
        choices = [reader.answer()]
    else:
        choices = read_whole(answer)
    for choice in choices:
        found = judge(load.sample, Record.of(choice))
        result.finished += 1 - found.counts.truncated
        result.calls += found.counts.calls
        if not found.counts.truncated:
            result.problems += (f"#{load.sample.number} {load.kind}: {problem}" for problem in found.problems)


def _stable(choice: dict[str, Any]) -> Any:
    """Return the parts of a choice that must be the same on two servers (no ids or times)."""
    message = choice.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return [content, choice.get("text"), choice.get("finish_reason"), choice.get("logprobs") is not None]
