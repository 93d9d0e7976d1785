"""Sending the mixed load, and what came of it."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

from constrained_k2.evaluation.chat_answer import Unusable, member, read_stream, read_whole
from constrained_k2.evaluation.scores import score
from constrained_k2.evaluation.soak.load import Load

_MEBIBYTE = 1 << 20
_WEIGHED_EVERY = 500  # requests; the load is sent in pieces of so many


@dataclass(slots=True)
class Soak:
    """What came of a load.

    Attributes:
        statuses: ``(kind, outcome)`` -> how often; the outcome is an HTTP status, ``aborted`` or an error's class.
        finished: Constrained answers that were not cut by ``max_tokens``.
        calls: Calls in them.
        problems: What must not be, a line each.
        texts: Load's number -> what was answered, of those that are compared between servers.
        memory: ``(requests done, MiB)`` resident in all of the server's processes.
        seconds: What it took.
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
        concurrency: How many at a time.
        pid: The server's process, to weigh it and its children; None not to.
        say: Takes a line of progress.
    """
    result = Soak()
    places = asyncio.Semaphore(concurrency)
    start, done = time.monotonic(), 0
    limits = httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:

        async def one(load: Load) -> None:
            async with places:
                await _send(client, load, result)

        for piece in _pieces(loads, _WEIGHED_EVERY):
            await asyncio.gather(*map(one, piece))
            done += len(piece)
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


def _pieces(loads: Iterable[Load], size: int) -> Iterator[list[Load]]:
    piece: list[Load] = []
    for load in loads:
        piece.append(load)
        if len(piece) == size:
            yield piece
            piece = []
    if piece:
        yield piece


def _resident_mebibytes(pid: int) -> float:
    """What a process and its descendants hold in memory."""
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    return sum(float(member.memory_info().rss) for member in family) / _MEBIBYTE


async def _send(client: httpx.AsyncClient, load: Load, result: Soak) -> None:
    """Send one request and judge its answer."""
    try:
        status, answer = await (_stream if load.body.get("stream") else _whole)(client, load)
    except (httpx.HTTPError, ValueError) as error:  # no connection, or an event that is no JSON
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
        except Unusable as error:
            result.problems.append(f"{where}: {error}")


async def _whole(client: httpx.AsyncClient, load: Load) -> tuple[str, Any]:
    """An answer's status and JSON."""
    response = await client.post(load.path, json=load.body)
    return str(response.status_code), _decoded(response)


async def _stream(client: httpx.AsyncClient, load: Load) -> tuple[str, Any]:
    """A stream's status and the JSON of its events; or break it off."""
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
            if "error" in events[-1]:
                return "error in the stream", events[-1]
            if load.abort_after is not None and len(events) >= load.abort_after:
                return "aborted", events
    return "stream without [DONE]", events


def _decoded(response: httpx.Response) -> Any:
    """The JSON of a body; its text where it is none, as that of a bare 500."""
    try:
        return response.json()
    except ValueError:
        return response.text


def _judge(load: Load, answer: Any, result: Soak) -> None:
    """Count an answer of status 200.

    Raises:
        Unusable: It is no chat completion.
    """
    if load.expect == "same":
        result.texts[load.number] = json.dumps(
            [_said(choice) for choice in member(answer, "choices", list, "the answer") or ()]
        )
        return
    assert load.sample is not None
    read = read_stream(answer) if load.body.get("stream") else read_whole(answer)[0]
    found = score(load.sample, read.scored)
    result.finished += found.finished
    result.calls += found.calls
    result.problems += (f"{load.kind}: {problem}" for problem in found.problems)


def _said(choice: dict[str, Any]) -> Any:
    """What a choice says, without what differs between two servers (ids, times)."""
    message = choice.get("message") or {}
    return [message.get("content"), choice.get("text"), choice["finish_reason"], choice.get("logprobs") is not None]
