"""Show where the time of a step goes on whole vLLM servers, by process and by whose code it is, and draw a flame graph.

Needs py-spy (``pip install py-spy``), and the right to trace processes. About 2 minutes an arm.
"""

import argparse
import asyncio
import itertools
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.servers.flame_graph import draw
from benchmarks.servers.run import SERVERS, Arm, arms_named, ask, bodies_of, flags_of
from benchmarks.servers.stacks import OURS, Sampled, read_stacks
from constrained_k2.evaluation.bundled import build_demo_model
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.evaluation.server_metrics import growth, parse_counters, total

_RATE = 250  # samples a second
_PROCESSES = ("API server", "engine core", "worker")
_DEFAULT = ("tools, unconstrained", "tools, constrained")
_SHOWN = 12  # functions of this package that the table names


def profile(  # noqa: PLR0913 - what a run consists of
    arm: Arm, model: Path, directory: Path, *, concurrency: int, seconds: int, py_spy: str
) -> Sampled:
    """Sample a server's processes while requests with new tools run, as many at a time as asked for."""
    flags, environment = SERVERS[arm.server]
    log = directory / f"{arm.server}.log"
    with VllmServer(model, flags_of(flags), log=log, environment=environment) as server:
        asyncio.run(ask(server.url, bodies_of(arm, concurrency, 0), concurrency))  # warm up
        found = dict(zip(_PROCESSES, _processes(server.pid), strict=False))
        outputs = {name: directory / f"{name}.txt" for name in found}
        options = (
            "--rate",
            f"{_RATE}",
            "--duration",
            f"{seconds}",
            "--nonblocking",
            "--format",
            "raw",
            "--full-filenames",
        )
        samplers = [
            subprocess.Popen(  # noqa: S603 - py-spy
                [py_spy, "record", "--pid", f"{pid}", "--output", str(outputs[name]), *options],
                stdout=subprocess.DEVNULL,
            )
            for name, pid in found.items()
        ]
        steps = asyncio.run(_busy(server.url, arm, concurrency, seconds))
        for sampler in samplers:
            if sampler.wait(timeout=60):
                raise RuntimeError(f"py-spy ended with {sampler.returncode}: may it trace processes?")
        stacks: dict[str, Counter[tuple[str, ...]]] = {
            name: read_stacks(path.read_text(errors="replace").splitlines()) for name, path in outputs.items()
        }
    return Sampled(stacks, _RATE, steps)


def _processes(pid: int) -> list[int]:
    """Return the ids of a server's API server, engine core and worker."""
    found = [pid]
    for child in psutil.Process(pid).children(recursive=True):
        title = " ".join(child.cmdline())
        if "VLLM::" in title and "resource_tracker" not in title:
            found.append(child.pid)
    return found


async def _busy(url: str, arm: Arm, concurrency: int, seconds: float) -> float:
    """Send waves of requests for so long; return the number of steps that the engine makes meanwhile."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        before = parse_counters((await client.get("/metrics")).text, "vllm:")
        end = time.monotonic() + seconds
        for seed in itertools.count(1):
            if time.monotonic() >= end:
                break
            await ask(url, bodies_of(arm, concurrency, seed), concurrency)
        grown = growth(before, parse_counters((await client.get("/metrics")).text, "vllm:"))
    return total(grown, "vllm:iteration_tokens_total_count")


def table(arms: Sequence[tuple[str, Sampled]]) -> Table:
    """Format the microseconds of CPU a step, by process and owner."""
    found = Table(title="Microseconds a step on a CPU, by process and by whose code it is")
    found.add_column("")
    for name, _ in arms:
        found.add_column(name, justify="right")
    for process in _PROCESSES:
        present = [(sampled, sampled.by_owner(process)) for _, sampled in arms if process in sampled.processes]
        if len(present) < len(arms):
            continue
        totals = (f"{sampled.microseconds(sum(owners.values())):,.0f}" for sampled, owners in present)
        found.add_row(process, *totals, style="bold")
        for owner in sorted({owner for _, owners in present for owner in owners}):
            found.add_row(f"  {owner}", *(f"{sampled.microseconds(owners[owner]):,.0f}" for sampled, owners in present))
    return found


def functions(sampled: Sampled) -> Table:
    """Format this package's functions by their own time, with what they call in libraries."""
    found = Table(title="This package's functions, by their own time")
    for column in ("process", "function", "µs a step"):
        found.add_column(column, justify="right" if "µs" in column else "left")
    own = Counter(
        {(name, each): count for name in sampled.processes for each, count in sampled.by_function(name).items()}
    )
    for (process, each), count in own.most_common(_SHOWN):
        function, _, file = each.removesuffix(")").partition(" (")
        place = file[file.rfind(f"/{OURS}/") + 1 :]
        found.add_row(process, f"{function} ({place})", f"{sampled.microseconds(count):.1f}")
    return found


def main() -> None:
    """Profile, print, and draw the last arm."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.servers.profile", description=__doc__)
    parser.add_argument("--arm", action="append", default=[], help="as in benchmarks.servers (default: with tools)")
    parser.add_argument("--concurrency", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=60, help="of each arm (default: %(default)s)")
    parser.add_argument("--py-spy", default=shutil.which("py-spy"), help="its path (default: found in PATH)")
    parser.add_argument("--svg", type=Path, help="write the flame graph of the structured-output route here")
    options = parser.parse_args()
    if options.py_spy is None:
        parser.error("py-spy is not in PATH: pip install py-spy, or give its path with --py-spy")
    try:
        arms = arms_named(options.arm or _DEFAULT)
    except ValueError as error:
        parser.error(str(error))
    console = Console(width=170)
    found: list[tuple[str, Sampled]] = []
    for arm in arms:
        with tempfile.TemporaryDirectory() as name:
            model = build_demo_model(Path(name) / "model")
            sampled = profile(
                arm, model, Path(name),
                concurrency=options.concurrency, seconds=options.seconds, py_spy=options.py_spy,
            )  # fmt: skip
        found.append((arm.name, sampled))
        if arm.server in {"structured_output", "logits_processor"}:
            console.print(arm.name, functions(sampled))
        if options.svg is not None and arm.server == "structured_output":
            title = f"{arm.name}, {options.concurrency} requests at a time: CPU time by process (orange: this package)"
            options.svg.write_text(draw(sampled, title), "utf-8")
    console.print(table(found))


if __name__ == "__main__":
    main()
