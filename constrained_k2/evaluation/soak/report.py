"""The soak from end to end: a server without the plugin, servers with it, and how they compare."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from constrained_k2.evaluation.server import WITHOUT_PLUGIN, VllmServer
from constrained_k2.evaluation.soak.load import Load
from constrained_k2.evaluation.soak.run import Soak, soak

# Float32, so that how requests are batched does not show in what is sampled.
FLAGS = ("--dtype=float32", "--max-num-seqs=32")
_TROUBLE = re.compile(r"Traceback|EngineDeadError|EngineCore.*(?:fatal|died)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Compared:
    """A soak beside the reference.

    Attributes:
        soak: What came of it.
        compared: Requests of other kinds that both servers answered.
        changed: The numbers of those answered differently.
        trouble: Lines of the server's log that must not be.
        others_seconds: What the requests of other kinds took by themselves.
    """

    soak: Soak
    compared: int
    changed: tuple[int, ...]
    trouble: tuple[str, ...]
    others_seconds: float

    @property
    def is_good(self) -> bool:
        """Whether everything held."""
        return not self.soak.problems and not self.changed and not self.trouble


def reference(model: Path, loads: Sequence[Load], log: Path, *, concurrency: int) -> tuple[dict[int, str], int, float]:
    """What a server without the plugin answers to requests that are not ours.

    Returns:
        The answers; how many differ when asked again alone (the noise of batching, which no plugin has to do with);
        what the requests took together, in seconds.
    """
    others = [load for load in loads if load.expect == "same"]
    with VllmServer(model, FLAGS, log=log, environment=WITHOUT_PLUGIN) as server:
        asyncio.run(soak(server.url, others[:concurrency], concurrency=concurrency))  # what is slow the first time
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
    concurrency: int,
    say: Callable[[str], None],
) -> Compared:
    """Send the load to a server with the plugin.

    Args:
        model: The model's directory.
        flags: What turns a route on.
        loads: The load.
        expected: What the reference answered.
        log: Takes the server's log.
        concurrency: How many requests at a time.
        say: Takes progress.
    """
    with VllmServer(model, (*FLAGS, *flags), log=log) as server:
        others = [load for load in loads if load.expect == "same"]
        asyncio.run(soak(server.url, others[:concurrency], concurrency=concurrency))
        by_themselves = asyncio.run(soak(server.url, others, concurrency=concurrency))
        found = asyncio.run(soak(server.url, loads, concurrency=concurrency, pid=server.pid, say=say))
        written = server.log_text()
    changed = []
    both = found.texts.keys() & by_themselves.texts.keys() & expected.keys()
    for number in sorted(both):
        alone, mixed = by_themselves.texts[number], found.texts[number]
        if not alone == mixed == expected[number]:
            say(f"#{number}: {expected[number]} became {alone} by themselves, {mixed} in the mix")
            changed.append(number)
    trouble = tuple(line for line in written.splitlines() if _TROUBLE.search(line))
    return Compared(found, len(both), tuple(changed), trouble, by_themselves.seconds)


def measure(
    model: Path, routes: dict[str, Sequence[str]], loads: Sequence[Load], directory: Path, *, concurrency: int
) -> dict[str, Compared]:
    """Soak each route with the same load, and print what came of it."""
    console = Console()
    expected, noise, seconds = reference(model, loads, directory / "reference.log", concurrency=concurrency)
    console.print(
        f"without the plugin: {len(expected)} answers in {seconds:.1f} s, {noise} of a quarter differ when asked alone"
    )
    results = {}
    for route, flags in routes.items():
        say = lambda line, route=route: console.print(f"{route}: {line}")  # noqa: E731 - a line of its own for each route
        log = directory / f"{route}.log"
        results[route] = compare(model, flags, loads, expected, log, concurrency=concurrency, say=say)
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
    table.add_row("seconds for the others by themselves", *(f"{r.others_seconds:.1f}" for r in results.values()))
    table.add_row("log lines of trouble", *(f"{len(r.trouble)}" for r in results.values()))
    table.add_row("MiB", *(" ".join(f"{size:.0f}" for _, size in each.memory) for each in soaks))
    table.add_row("seconds", *(f"{each.seconds:.0f}" for each in soaks))
    return table
