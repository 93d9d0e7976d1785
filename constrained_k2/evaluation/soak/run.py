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

from constrained_k2.evaluation.scores import Answer, score
from constrained_k2.evaluation.soak.load import Load

_MEBIBYTE = 1 << 20


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


async def soak(  # noqa: PLR0913 - the last four have defaults that most keep
    url: str,
    loads: Iterable[Load],
    *,
    concurrency: int = 32,
    pid: int | None = None,
    weigh_every: int = 500,
    say: Callable[[str], None] = lambda _: None,
) -> Soak:
    """Send a load.

    Args:
        url: The server's address, without ``/v1``.
        loads: The requests.
        concurrency: How many at a time.
        pid: The server's process, to weigh it and its children; None not to.
        weigh_every: After how many requests memory is read. The load is sent in pieces of this size.
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

        for piece in _pieces(loads, weigh_every):
            await asyncio.gather(*map(one, piece))
            done += len(piece)
            if pid is not None:
                result.memory.append((done, resident_mebibytes(pid)))
                say(f"{done} requests, {result.memory[-1][1]:.0f} MiB, {len(result.problems)} problems")
        health = await client.get("/health")
        if not health.is_success:
            result.problems.append(f"the server's health is HTTP {health.status_code}")
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


def resident_mebibytes(pid: int) -> float:
    """What a process and its descendants hold in memory."""
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    return sum(float(member.memory_info().rss) for member in family) / _MEBIBYTE


async def _send(client: httpx.AsyncClient, load: Load, result: Soak) -> None:
    """Send one request and judge its answer."""
    try:
        if load.body.get("stream"):
            status, answer = await _stream(client, load)
        else:
            response = await client.post(load.path, json=load.body)
            status, answer = str(response.status_code), response.json()
    except httpx.HTTPError as error:
        status, answer = type(error).__name__, {}
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
    elif load.expect == "same":
        result.texts[load.number] = json.dumps([_said(choice) for choice in answer["choices"]])
    else:
        _judge(load, answer, result)


def _said(choice: dict[str, Any]) -> Any:
    """What a choice says, without what differs between two servers (ids, times)."""
    message = choice.get("message") or {}
    return [message.get("content"), choice.get("text"), choice["finish_reason"], choice.get("logprobs") is not None]


def _judge(load: Load, answer: dict[str, Any], result: Soak) -> None:
    assert load.sample is not None
    choice = answer["choices"][0]
    calls = tuple(
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in choice["message"].get("tool_calls") or ()
    )
    found = score(load.sample, Answer(choice["finish_reason"], choice["message"].get("content") or "", calls))
    result.finished += found.finished
    result.calls += found.calls
    result.problems += (f"{load.kind}: {problem}" for problem in found.problems)


async def _stream(client: httpx.AsyncClient, load: Load) -> tuple[str, dict[str, Any]]:
    """A stream's status and what it adds up to, in the shape of a whole answer; or break it off."""
    content, reason = "", None
    calls: dict[int, dict[str, Any]] = {}
    async with client.stream("POST", load.path, json=load.body) as response:
        if response.status_code != 200:
            await response.aread()
            return str(response.status_code), response.json()
        events = 0
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                return "error in the stream", event
            events += 1
            if load.abort_after is not None and events >= load.abort_after:
                return "aborted", {}
            for choice in event["choices"]:
                reason = choice["finish_reason"] or reason
                content += choice["delta"].get("content") or ""
                for delta in choice["delta"].get("tool_calls") or ():
                    call = calls.setdefault(delta["index"], {"id": "", "function": {"name": "", "arguments": ""}})
                    call["id"] += delta.get("id") or ""
                    for key in ("name", "arguments"):
                        call["function"][key] += (delta.get("function") or {}).get(key) or ""
    message = {"content": content, "tool_calls": list(calls.values())}
    return "200", {"choices": [{"message": message, "finish_reason": reason}]}
