"""Comparisons of whole vLLM servers share this: flags, servers that take turns, requests, ratios of paired rounds."""

import asyncio
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

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

_PATIENT = {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "86400"}  # vLLM's 300 end while a server is suspended within a step
_RESAMPLED = 2_000
_TRIMMED = 0.2  # of the rounds, at each end
_STALLED = 5  # times the median of its rounds: a baseline that waited for the machine says nothing of an arm
_Arm = TypeVar("_Arm")


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


def named(arms: Mapping[str, _Arm], parts: Sequence[str]) -> list[_Arm]:
    """Return the arms whose names contain one of these parts; all arms for none.

    Raises:
        ValueError: No arm's name contains one of them.
    """
    for part in parts:
        if not any(part in name for name in arms):
            raise ValueError(f"no arm's name contains {part!r}; the arms are: {'; '.join(arms)}")
    return [arm for name, arm in arms.items() if not parts or any(part in name for part in parts)]


def turned(arms: Sequence[_Arm], number: int) -> list[_Arm]:
    """Return the arms in a round's order: each round begins with another one."""
    return [*arms[number % len(arms) :], *arms[: number % len(arms)]]


@contextmanager
def taking_turns(
    model: Path, names: Sequence[str], flags: Sequence[str], directory: Path
) -> Iterator[dict[str, VllmServer]]:
    """Run the named :data:`SERVERS` at the same time, all suspended (SIGSTOP): idle vLLM processes poll."""
    with ExitStack() as stack:
        servers = {}
        for name in dict.fromkeys(names):
            its_flags, environment = SERVERS[name]
            server = VllmServer(
                model, (*flags, *its_flags), log=directory / f"{name}.log", environment={**environment, **_PATIENT}
            )
            servers[name] = stack.enter_context(server)
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
