"""Runs the soak on a server without the plugin and on servers with it, and compares them."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.ranks.topologies import Topology
from benchmarks.soak.load import Load
from benchmarks.soak.run import Soak, soak
from constrained_k2.evaluation.server import WITHOUT_PLUGIN
from constrained_k2.evaluation.server_metrics import parse_counters, total

# float32, so that batching does not change the sampled tokens
FLAGS = ("--dtype=float32", "--max-num-seqs=32")
_COUNTED = ("num_preemptions", "prefix_cache_hits")
_TROUBLE = re.compile(r"Traceback|EngineDeadError|EngineCore.*(?:fatal|died)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    """The servers of a soak, with the package and without.

    Attributes:
        topology: Their ranks and processes.
        flags: Flags of all of them.
    """

    topology: Topology
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Compared:
    """A soak compared with the reference.

    Attributes:
        soak: The result.
        compared: Number of unconstrained requests that both servers answered.
        changed: Numbers of those whose answers differ.
        trouble: Lines of the server's log that report errors.
        others_seconds: Duration of the unconstrained requests alone.
        preemptions: Number of times that vLLM's scheduler preempted a request.
        cached_tokens: Prompt tokens that came from the prefix cache.
    """

    soak: Soak
    compared: int
    changed: tuple[int, ...]
    trouble: tuple[str, ...]
    others_seconds: float
    preemptions: int
    cached_tokens: int

    @property
    def is_good(self) -> bool:
        """True if nothing was wrong."""
        return not self.soak.problems and not self.changed and not self.trouble


def reference(
    model: Path, loads: Sequence[Load], log: Path, *, place: Place, concurrency: int
) -> tuple[dict[int, str], int, float]:
    """Send the unconstrained requests to a server without the plugin.

    Returns:
        The answers; how many differ when sent one at a time (noise of batching, unrelated to the plugin); the duration
        of all requests in seconds.
    """
    others = [load for load in loads if load.expect == "same"]
    if not others:
        return {}, 0, 0.0
    with place.topology.server(model, (*FLAGS, *place.flags), log=log, environment=WITHOUT_PLUGIN) as server:
        asyncio.run(soak(server.url, others[:concurrency], concurrency=concurrency))  # warm up
        together = asyncio.run(soak(server.url, others, concurrency=concurrency))
        alone = asyncio.run(soak(server.url, others[: len(others) // 4], concurrency=1))
    if together.problems:
        raise RuntimeError(f"a server without the plugin fails the load: {together.problems[:3]}")
    noise = sum(text != together.texts[number] for number, text in alone.texts.items())
    return together.texts, noise, together.seconds


def compare(  # noqa: PLR0913 - one soak's settings
    model: Path,
    flags: Sequence[str],
    loads: Sequence[Load],
    expected: dict[int, str],
    log: Path,
    *,
    place: Place,
    concurrency: int,
    say: Callable[[str], None],
) -> Compared:
    """Send the load to a server with the plugin.

    Args:
        model: The model's directory.
        flags: The route's server flags.
        loads: The load.
        expected: The answers of the reference.
        log: File for the server's log.
        place: Topology and flags of the server.
        concurrency: Requests at a time.
        say: Receives progress messages.
    """
    with place.topology.server(model, (*FLAGS, *place.flags, *flags), log=log) as server:
        others = [load for load in loads if load.expect == "same"]
        asyncio.run(soak(server.url, others[:concurrency], concurrency=concurrency))
        alone = asyncio.run(soak(server.url, others, concurrency=concurrency))
        found = asyncio.run(soak(server.url, loads, concurrency=concurrency, pid=server.pid, say=say))
        written = server.log_text()
        counters = parse_counters(httpx.get(f"{server.url}/metrics", timeout=60).text, "vllm:")
    changed = []
    both = found.texts.keys() & alone.texts.keys() & expected.keys()
    for number in sorted(both):
        unmixed, mixed = alone.texts[number], found.texts[number]
        if not unmixed == mixed == expected[number]:
            say(f"#{number}: {expected[number]} became {unmixed} alone, {mixed} in the mix")
            changed.append(number)
    trouble = tuple(line for line in written.splitlines() if _TROUBLE.search(line))
    preemptions, cached = (round(total(counters, f"vllm:{name}_total")) for name in _COUNTED)
    return Compared(found, len(both), tuple(changed), trouble, alone.seconds, preemptions, cached)


def measure(  # noqa: PLR0913 - one soak's settings
    model: Path,
    routes: dict[str, Sequence[str]],
    loads: Sequence[Load],
    directory: Path,
    *,
    place: Place,
    concurrency: int,
) -> dict[str, Compared]:
    """Send the same load to each route, and print the results."""
    console = Console()
    expected, noise, seconds = reference(
        model, loads, directory / "reference.log", place=place, concurrency=concurrency
    )
    console.print(
        f"without the plugin: {len(expected)} answers in {seconds:.1f} s, {noise} of a quarter differ one at a time"
    )
    results = {}
    for route, flags in routes.items():
        say = lambda line, route=route: console.print(f"{route}: {line}")  # noqa: E731 - a line of its own for each route
        log = directory / f"{route}.log"
        results[route] = compare(model, flags, loads, expected, log, place=place, concurrency=concurrency, say=say)
    console.print(_table(results))
    for route, result in results.items():
        for line in [*result.soak.problems[:10], *result.trouble[:10]]:
            console.print(f"{route}: {line}", markup=False, highlight=False)
        if result.changed:
            console.print(f"{route}: changed: {result.changed[:20]}")
    return results


def _table(results: dict[str, Compared]) -> Table:
    table = Table(title="A mixed load")
    for column in ("", *results):
        table.add_column(column, justify="right" if column else "left")
    for kind in sorted({kind for result in results.values() for kind, _ in result.soak.statuses}):
        cells = []
        for result in results.values():
            outcomes = {status: n for (of, status), n in sorted(result.soak.statuses.items()) if of == kind}
            cells.append(", ".join(f"{status}: {n}" for status, n in outcomes.items()))
        table.add_row(kind, *cells)
    soaks = [result.soak for result in results.values()]
    table.add_row("constrained answers finished", *(f"{each.finished}" for each in soaks))
    table.add_row("calls in them", *(f"{each.calls}" for each in soaks))
    table.add_row("problems", *(f"{len(each.problems)}" for each in soaks))
    table.add_row("others changed", *(f"{len(r.changed)} of {r.compared}" for r in results.values()))
    table.add_row("seconds for the others alone", *(f"{r.others_seconds:.1f}" for r in results.values()))
    table.add_row("log lines of trouble", *(f"{len(r.trouble)}" for r in results.values()))
    table.add_row("preemptions", *(f"{r.preemptions}" for r in results.values()))
    table.add_row("prompt tokens from the prefix cache", *(f"{r.cached_tokens}" for r in results.values()))
    table.add_row("MiB", *(" ".join(f"{size:.0f}" for _, size in each.memory) for each in soaks))
    table.add_row("seconds", *(f"{each.seconds:.0f}" for each in soaks))
    return table
