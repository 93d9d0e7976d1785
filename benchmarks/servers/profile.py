"""Show where the time of a step goes on whole vLLM servers, by process and by whose code it is, and draw a flame graph.

Needs py-spy (``pip install py-spy``), and the right to trace processes. About 2 minutes an arm.
"""

import argparse
import asyncio
import itertools
import shutil
import signal
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
from benchmarks.servers.stacks import Profile, Stack, by_function, by_owner, is_waiting, read_stacks
from constrained_k2.evaluation.bundled import build_demo_model
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.evaluation.server_metrics import growth, parse_counters, total

_RATE = 100  # samples a second
_PROCESSES = ("API server", "engine core", "worker")
_DEFAULT = ("tools, unconstrained", "tools, constrained")
_SHOWN = 12  # functions of this package that the table names


def profile(  # noqa: PLR0913 - what a run consists of
    arm: Arm, model: Path, directory: Path, *, concurrency: int, seconds: int, py_spy: str
) -> Profile:
    """Sample a server's processes while requests with new tools run, as many at a time as asked for."""
    flags, environment = SERVERS[arm.server]
    log = directory / f"{arm.server}.log"
    with VllmServer(model, flags_of(flags), log=log, environment=environment) as server:
        asyncio.run(ask(server.url, bodies_of(arm, concurrency, 0), concurrency))  # warm up
        samplers = {
            name: _Sampler(py_spy, pid, directory / f"{name}.txt")
            for name, pid in zip(_PROCESSES, _processes(server.pid), strict=False)
        }
        try:
            steps = asyncio.run(_busy(server.url, arm, concurrency, seconds))
        finally:
            found = {name: sampler.stop() for name, sampler in samplers.items()}
    return {name: _by_cpu_time(stacks, 1e6 * seconds / steps) for name, (stacks, seconds) in found.items()}


def _by_cpu_time(stacks: Counter[Stack], microseconds: float) -> dict[Stack, float]:
    """Divide a process's CPU time among its samples, those of waiting threads left out."""
    busy = {stack: count for stack, count in stacks.items() if not is_waiting(stack)}
    return {stack: microseconds * count / sum(busy.values()) for stack, count in busy.items()}


class _Sampler:
    """py-spy on one process."""

    def __init__(self, py_spy: str, pid: int, output: Path) -> None:
        self._output = output
        options = (
            "--rate",
            f"{_RATE}",
            "--duration",
            "unlimited",
            "--format",
            "raw",
            "--full-filenames",
        )
        command = [py_spy, "record", "--pid", f"{pid}", "--output", str(output), *options]
        self._sampled = psutil.Process(pid)
        self._before = _cpu_seconds(self._sampled)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: S603

    def stop(self) -> tuple[Counter[Stack], float]:
        """Return the samples, and the seconds that the process was on a CPU meanwhile, by the kernel's clock.

        Raises:
            RuntimeError: py-spy could not sample.
        """
        seconds = _cpu_seconds(self._sampled) - self._before
        self._process.send_signal(signal.SIGINT)
        said, _ = self._process.communicate(timeout=120)
        if not self._output.is_file():
            raise RuntimeError(f"py-spy ended with {self._process.returncode}; may it trace processes? {said[-500:]}")
        return read_stacks(self._output.read_text(errors="replace").splitlines()), seconds


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


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


def table(arms: Sequence[tuple[str, Profile]]) -> Table:
    """Format the microseconds of CPU a step, by process and owner."""
    found = Table(title="Microseconds of CPU a step, by process and by whose code it is")
    found.add_column("")
    for name, _ in arms:
        found.add_column(name, justify="right")
    for process in _PROCESSES:
        times = [by_owner(shares.get(process, {})) for _, shares in arms]
        found.add_row(process, *(f"{sum(owners.values()):,.0f}" for owners in times), style="bold")
        for owner in sorted({owner for owners in times for owner in owners}):
            found.add_row(f"  {owner}", *(f"{owners.get(owner, 0.0):,.0f}" for owners in times))
    return found


def functions(shares: Profile) -> Table:
    """Format this package's functions by their own time, with what they call in libraries."""
    found = Table(title="This package's functions, by their own time")
    for column in ("process", "function", "µs a step"):
        found.add_column(column, justify="right" if "µs" in column else "left")
    own = [(time, process, each) for process in shares for each, time in by_function(shares[process]).items()]
    for time_a_step, process, each in sorted(own, reverse=True)[:_SHOWN]:
        function, _, file = each.removesuffix(")").partition(" (")
        found.add_row(process, f"{function} ({file.removeprefix('/')})", f"{time_a_step:.1f}")
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
    found: list[tuple[str, Profile]] = []
    for arm in arms:
        with tempfile.TemporaryDirectory() as name:
            model = build_demo_model(Path(name) / "model")
            shares = profile(
                arm, model, Path(name),
                concurrency=options.concurrency, seconds=options.seconds, py_spy=options.py_spy,
            )  # fmt: skip
        found.append((arm.name, shares))
        if arm.server in {"structured_output", "logits_processor"}:
            console.print(arm.name, functions(shares))
        if options.svg is not None and arm.server == "structured_output":
            title = f"{arm.name}, {options.concurrency} requests at a time: CPU time by process (orange: this package)"
            options.svg.write_text(draw(shares, title), "utf-8")
    console.print(table(found))


if __name__ == "__main__":
    main()
