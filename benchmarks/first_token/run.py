"""Sends requests with new tools to every server in turn, and times their tokens at the client."""

import asyncio
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from benchmarks.first_token.servers import ARMS, FREE, SERVERS, Arm, flags_of, write_model
from benchmarks.host.workload import Workload
from benchmarks.servers.new_tools import renewed
from benchmarks.servers.suspension import resume, running, suspend
from constrained_k2.evaluation.server import VllmServer

_TOKENS = 48  # of an answer: a call's id, and the beginning of its arguments
_BACKGROUND_TOKENS = 100_000  # more than it has time for
_BEGUN = 8  # tokens of the other stream before the request is sent
_WARM_UP = 2  # requests of one tool to every arm, which are not counted


@dataclass(frozen=True, slots=True)
class Sample:
    """One request, in milliseconds.

    Attributes:
        first: From sending it to its first token.
        longest: The longest time between two of its tokens after that.
        background: The longest time between two tokens of another request on the same server meanwhile.
    """

    first: float
    longest: float
    background: float


@dataclass(frozen=True, slots=True)
class Row:
    """An arm with one number of tools.

    Attributes:
        arm: The arm.
        tools: The number of tools.
        samples: One for each round.
        baseline: The free arm's, for the same tools.
    """

    arm: Arm
    tools: int
    samples: tuple[Sample, ...]
    baseline: tuple[Sample, ...]

    def median(self, field: str) -> float:
        """The median of a field of the samples."""
        times: list[float] = [getattr(sample, field) for sample in self.samples]
        return statistics.median(times)

    def added(self, field: str) -> tuple[float, float, float]:
        """The field less the baseline's of the same round: median, least and most."""
        pairs = zip(self.samples, self.baseline, strict=True)
        added = sorted(getattr(own, field) - getattr(other, field) for own, other in pairs)
        return statistics.median(added), added[0], added[-1]


def measure(  # noqa: PLR0913 - what a run consists of
    workload: Workload,
    directory: Path,
    *,
    tokenizer: Path | None,
    rounds: int,
    counts: Sequence[int],
    arms: Sequence[Arm] = ARMS,
) -> Iterator[list[Row]]:
    """Ask every arm in every round, one number of tools after the other; each round begins with another arm.

    Args:
        workload: Where the tools come from.
        directory: Folder for models and logs.
        tokenizer: The directory of the real vocabulary; None for a small one.
        rounds: Number of rounds.
        counts: Numbers of tools.
        arms: The arms, the free one among them.

    Yields:
        The rows of one number of tools, as soon as they are complete.
    """
    model = write_model(directory, tokenizer)
    with ExitStack() as stack:
        servers: dict[str, VllmServer] = {}
        for name in dict.fromkeys(arm.server for arm in arms):
            server = VllmServer(
                model,
                flags_of(name),
                log=directory / f"{name}.log",
                environment=SERVERS[name][1],
            )
            servers[name] = stack.enter_context(server)
            suspend(server)
            stack.callback(resume, server)
        seeds = iter(range(1, 1_000_000))
        for _ in range(_WARM_UP):
            for arm in arms:
                _sample(servers[arm.server], arm, renewed(workload.first(1), next(seeds)))
        for count in counts:
            found: dict[str, list[Sample]] = {arm.name: [] for arm in arms}
            for number in range(rounds):
                alone, beside = (renewed(workload.first(count), next(seeds)) for _ in range(2))
                for arm in (*arms[number % len(arms) :], *arms[: number % len(arms)]):
                    found[arm.name].append(_sample(servers[arm.server], arm, alone, beside))
            yield [Row(arm, count, tuple(found[arm.name]), tuple(found[FREE])) for arm in arms]


def body_of(arm: Arm, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return an arm's request: the arms' prompts are the same."""
    choice = "required" if arm.is_constrained else "auto"
    return _free_body("What can these tools do?", _TOKENS) | {"tools": list(tools), "tool_choice": choice}


def _free_body(question: str, tokens: int) -> dict[str, Any]:
    body = {"model": "kimi-k2", "messages": [{"role": "user", "content": question}], "max_tokens": tokens}
    # Ids make vLLM send a chunk for every token, whatever its parser shows of it.
    return body | {"temperature": 0, "ignore_eos": True, "stream": True, "return_token_ids": True}


def _sample(
    server: VllmServer, arm: Arm, alone: Sequence[dict[str, Any]], beside: Sequence[dict[str, Any]] = ()
) -> Sample:
    """Send two requests to a server that is suspended otherwise: one alone, and one beside a stream."""
    with running(server):
        return asyncio.run(_asked(server.url, body_of(arm, alone), body_of(arm, beside) if beside else None))


async def _asked(url: str, alone: Mapping[str, Any], beside: Mapping[str, Any] | None) -> Sample:
    loop = asyncio.get_running_loop()
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        (await client.get("/health")).raise_for_status()  # opens the connection, and the server runs
        start = loop.time()
        times = await _token_times(client, alone)
        background = [0.0]
        if beside is not None:
            background = await _beside_a_stream(client, beside)
    return Sample(1e3 * (times[0] - start), 1e3 * max(_gaps(times)), 1e3 * max(background))


async def _beside_a_stream(client: httpx.AsyncClient, body: Mapping[str, Any]) -> list[float]:
    """Return the seconds between the tokens of a stream while another request is served."""
    loop = asyncio.get_running_loop()
    times: list[float] = []
    begun = asyncio.Event()
    stream = asyncio.create_task(_token_times(client, _free_body("Count.", _BACKGROUND_TOKENS), times, begun))
    waiting = asyncio.create_task(begun.wait())
    await asyncio.wait((stream, waiting), return_when=asyncio.FIRST_COMPLETED)
    start = loop.time()
    await _token_times(client, body)
    end = loop.time()
    stream.cancel()
    with suppress(asyncio.CancelledError):
        await stream
    first = max(at for at, time in enumerate(times) if time <= start)
    return _gaps([time for time in times[first:] if time <= end])


async def _token_times(
    client: httpx.AsyncClient,
    body: Mapping[str, Any],
    times: list[float] | None = None,
    begun: asyncio.Event | None = None,
) -> list[float]:
    """Return when each chunk with tokens of a stream came.

    Args:
        client: The client.
        body: The request.
        times: The same times, appended to as they come.
        begun: Set once some tokens have come.
    """
    loop = asyncio.get_running_loop()
    times = [] if times is None else times
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        if not answer.is_success:
            raise RuntimeError(f"HTTP {answer.status_code}: {(await answer.aread())[:500]!r}")
        async for line in answer.aiter_lines():
            if line.startswith("data: {") and '"token_ids":[' in line:
                times.append(loop.time())
                if begun is not None and len(times) == _BEGUN:
                    begun.set()
            elif '"error"' in line:
                raise RuntimeError(line[:500])
    return times


def _gaps(times: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]
