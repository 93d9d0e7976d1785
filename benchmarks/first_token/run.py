"""Sends requests with new tools to every server in turn, and times their tokens at the client."""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
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
_WARM_UP = 2  # requests of one tool to every arm, which are not counted


@dataclass(frozen=True, slots=True)
class Sample:
    """One request, in milliseconds.

    Attributes:
        first: From sending it to its first token.
        longest: The longest time between two of its tokens after that.
    """

    first: float
    longest: float


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
                tools = renewed(workload.first(count), next(seeds))
                for arm in (*arms[number % len(arms) :], *arms[: number % len(arms)]):
                    found[arm.name].append(_sample(servers[arm.server], arm, tools))
            yield [Row(arm, count, tuple(found[arm.name]), tuple(found[FREE])) for arm in arms]


def body_of(arm: Arm, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return an arm's request: the arms' prompts are the same."""
    return {
        "model": "kimi-k2",
        "messages": [{"role": "user", "content": "What can these tools do?"}],
        "tools": list(tools),
        "tool_choice": "required" if arm.is_constrained else "auto",
        "max_tokens": _TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,  # makes vLLM send a chunk for every token, whatever its parser shows of it
    }


def _sample(server: VllmServer, arm: Arm, tools: Sequence[dict[str, Any]]) -> Sample:
    """Send a request to a server that is suspended otherwise."""
    with running(server), httpx.Client(base_url=server.url, timeout=600) as client:
        client.get("/health").raise_for_status()  # opens the connection, and the server runs
        start = time.monotonic()
        times = _token_times(client, body_of(arm, tools))
    return Sample(1e3 * (times[0] - start), 1e3 * max(later - earlier for earlier, later in pairwise(times)))


def _token_times(client: httpx.Client, body: Mapping[str, Any]) -> list[float]:
    """Return when each chunk with tokens of a stream came."""
    times: list[float] = []
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        if not answer.is_success:
            raise RuntimeError(f"HTTP {answer.status_code}: {answer.read()[:500]!r}")
        for line in answer.iter_lines():
            if line.startswith("data: {") and '"token_ids":[' in line:
                times.append(time.monotonic())
            elif '"error"' in line:
                raise RuntimeError(line[:500])
    return times
