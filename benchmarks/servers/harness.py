"""Comparisons of whole vLLM servers share this: flags, servers that take turns, requests, ratios of paired rounds."""

import argparse
import asyncio
import signal
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import psutil
from scipy import stats  # type: ignore[import-untyped]

from constrained_k2.evaluation.server import BACKEND_FLAGS, CONSTRAINED_FLAGS, STRICT_FLAGS, WITHOUT_PLUGIN, VllmServer

FLOAT32 = "--dtype=float32"  # in bfloat16 the likeliest token can depend on the batch size
SERVERS: Mapping[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "stock": (STRICT_FLAGS[:3], WITHOUT_PLUGIN),
    "strict": (STRICT_FLAGS, WITHOUT_PLUGIN),
    "structured_output": (BACKEND_FLAGS, {}),
    "logits_processor": (CONSTRAINED_FLAGS, {}),
}
"""Name -> flags and environment."""

FREE = "tools, unconstrained"
ARMS: Mapping[str, str] = {
    FREE: "stock",
    "tools, constrained, structured_output route": "structured_output",
    "tools, constrained, logits_processor route": "logits_processor",
    "tools, vLLM's strict level": "strict",
}
"""The arms that are compared in speed, each with its server; all have the same prompts."""

_PATIENT = {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "86400"}  # vLLM's 300 end while a server is suspended within a step
_RESAMPLED = 2_000
_TRIMMED = 0.2  # of the rounds, at each end
_STALLED = 5  # times the median of its rounds: a baseline that waited for the machine says nothing of an arm


class Ratio(NamedTuple):
    """The geometric mean of ratios without the lowest and highest fifth, and its 95 % interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> "Ratio":
        """Return the ratio of rounds, its interval by a bootstrap: single rounds are off by a quarter at times."""
        logs = np.log(ratios)
        drawn = np.random.default_rng(0).choice(logs, (_RESAMPLED, len(logs)))
        means = stats.trim_mean(drawn, _TRIMMED, axis=1)
        return cls(*np.exp([stats.trim_mean(logs, _TRIMMED), *np.percentile(means, [2.5, 97.5])]).tolist())


def paired(times: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """Return the baseline's time divided by the arm's, by rounds, sorted, without rounds whose baseline stalled."""
    longest = _STALLED * statistics.median(baseline)
    return sorted(other / own for own, other in zip(times, baseline, strict=True) if other <= longest)


def arms_named(part: str) -> list[str]:
    """Return the arms whose names contain this part, as the type of an option ``--arm``."""
    if not (found := [arm for arm in ARMS if part in arm]):
        raise argparse.ArgumentTypeError(f"no arm's name contains {part!r}; the arms are: {'; '.join(ARMS)}")
    return found


def options_with_arms(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, list[str]]:
    """Parse a benchmark's options; return them, and the arms that ``--arm`` leaves, always with :data:`FREE`."""
    text = f"only arms whose names contain this, and {FREE!r}; repeatable"
    parser.add_argument("--arm", type=arms_named, action="append", metavar="PART", help=text)
    options = parser.parse_args()
    return options, [arm for arm in ARMS if not options.arm or arm in {FREE, *chain(*options.arm)}]


def turned(arms: Sequence[str], number: int) -> list[str]:
    """Return the arms in a round's order: each round begins with another one."""
    return [*arms[number % len(arms) :], *arms[: number % len(arms)]]


@contextmanager
def taking_turns(
    model: Path, arms: Sequence[str], flags: Sequence[str], directory: Path
) -> Iterator[dict[str, VllmServer]]:
    """Start the servers of the given :data:`ARMS`, and suspend them (SIGSTOP), because idle vLLM processes poll."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a suspended server does not end with its parent
    with ExitStack() as stack:
        servers = {}
        for arm in arms:
            its_flags, environment = SERVERS[ARMS[arm]]
            log = directory / f"{ARMS[arm]}.log"
            server = VllmServer(model, (*flags, *its_flags), log=log, environment={**environment, **_PATIENT})
            servers[arm] = stack.enter_context(server)
            _suspend(server)
            stack.callback(_resume, server)
        yield servers


@contextmanager
def running(server: VllmServer) -> Iterator[VllmServer]:
    """A suspended server that runs within the block."""
    _resume(server)
    try:
        yield server
    finally:
        _suspend(server)


def cpu_seconds(server: VllmServer) -> float:
    """Return the CPU time that a server's processes have taken so far."""
    return sum(sum(process.cpu_times()[:2]) for process in _family(server))


def _suspend(server: VllmServer) -> None:
    for process in _family(server):
        process.suspend()


def _resume(server: VllmServer) -> None:
    for process in _family(server):
        process.resume()


def _family(server: VllmServer) -> list[psutil.Process]:
    process = psutil.Process(server.pid)
    return [process, *process.children(recursive=True)]


def answers(url: str, bodies: Sequence[Mapping[str, Any]], concurrency: int = 8) -> list[tuple[int, Any]]:
    """Send chat requests, ``concurrency`` at a time; return each one's HTTP status and JSON."""

    async def all_of_them() -> list[tuple[int, Any]]:
        slots = asyncio.Semaphore(concurrency)
        async with httpx.AsyncClient(base_url=url, timeout=600) as client:

            async def one(body: Mapping[str, Any]) -> tuple[int, Any]:
                async with slots:
                    answer = await client.post("/v1/chat/completions", json=body)
                    return answer.status_code, answer.json()

            return await asyncio.gather(*map(one, bodies))

    return asyncio.run(all_of_them())
