"""Measure what it costs the API server to admit requests with tools that it has not seen before (a minute or two).

No engine and no model: the request hook, the schemas' check and the sampling parameters, as the server runs them. The
second arm compiles every schema, also those that are admitted by their shape. The longest pause of another coroutine
is measured while a request is admitted, and then as long while none is. Exit code 1 if a promised figure is missed.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

from benchmarks.host.timing import Times, collected_before
from benchmarks.host.workload import mcp_tools
from benchmarks.report import Cell, Report
from constrained_k2.compiler import fast_path
from constrained_k2.vllm_plugin.api_server import request_hook
from constrained_k2.vllm_plugin.api_server.admission import check_params
from constrained_k2.vllm_plugin.api_server.request_state import RequestState
from constrained_k2.vllm_plugin.shared.byte_compiler import SLOW_SECONDS
from constrained_k2.vllm_plugin.shared.server import Server

Tools = Sequence[dict[str, Any]]
_COLUMNS = "new tools", "CPU, ms", "on the event loop, ms", "pause of others, ms", "none admitted, ms"
_MAX_CPU, _MAX_ONE_TOOL, _MAX_DELAY = 100.0, 5.0, 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for each arm."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admission", description=__doc__)
    parser.add_argument("--repeats", type=int, default=9, help="requests of each size (default: %(default)s)")
    parser.add_argument(
        "--pauses", type=int, default=200, help="requests beside which pauses are measured (%(default)s)"
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=(1, 16, 64, 258), help="tools in a request")
    options = parser.parse_args(arguments)
    tools = mcp_tools()
    report, sizes, repeats = Report(), options.sizes, options.repeats
    served = measure(tools, sizes, repeats, options.pauses, "by shape")
    printed(report, f"As served, p50 / p99 ({len(tools)} tools)", served)
    with compiling_all():
        compiled = measure(tools, sizes, repeats, min(repeats, options.pauses), "compiled")
    printed(report, "Every schema compiled, p50 / p99", compiled)
    last = served.requests[-1]
    limit = max(_MAX_DELAY, last.control.p99)  # a machine that pauses longer by itself shows nothing
    for what, figure, most in (
        (f"ms of CPU for {last.tools} new tools", last.cpu.p50, _MAX_CPU),
        ("ms of CPU for one tool (p99)", served.one_tool.p99, _MAX_ONE_TOOL),
        ("ms for which others wait (p99)", last.delay.p99, limit),
    ):
        report.check(f"at most {most:.3g} {what}", passed=figure <= most, note=f"{figure:.3g}")
    return int(bool(report.failed))


class Admitted(NamedTuple):
    """Requests with so many new tools, in milliseconds; each distribution is over requests."""

    tools: int  # tools in a request
    cpu: Times  # CPU time of all threads to admit the request, from the request hook to its sampling parameters
    on_loop: Times  # the part of `cpu` that runs on the thread of the event loop
    delay: Times  # the longest pause of another coroutine meanwhile, without that of other processes
    control: Times  # the same over as long a time after each request, in which nothing is admitted


class Figures(NamedTuple):
    """One arm: requests of each size, and requests with one tool, CPU time in milliseconds over all tools."""

    requests: list[Admitted]
    one_tool: Times


def printed(report: Report, title: str, figures: Figures) -> None:
    """Print an arm's table."""
    rows: list[tuple[Cell, ...]] = [
        (row.tools, _pair(row.cpu), f"{row.on_loop.p50:.2f}", _pair(row.delay), _pair(row.control))
        for row in figures.requests
    ]
    report.table(title, _COLUMNS, rows, f"One of the tools alone: {_pair(figures.one_tool)} ms of CPU")


def _pair(times: Times) -> str:
    return f"{times.p50:.2f} / {times.p99:.2f}"


@contextmanager
def compiling_all() -> Iterator[None]:
    """Have admission compile every schema, also those that it admits by their shape."""
    with patch.object(fast_path, "fast_path_shape", lambda _: None):
        yield


def measure(tools: Tools, sizes: Sequence[int], repeats: int, pauses: int, salt: str) -> Figures:
    """Measure one arm: ``repeats`` requests of each size, and the pauses beside ``pauses`` others.

    ``salt`` makes its schemas new.
    """
    Server.constrains = True
    with collected_before():
        return asyncio.run(_measure(tools, sizes, repeats, pauses, salt))


async def _measure(tools: Tools, sizes: Sequence[int], repeats: int, pauses: int, salt: str) -> Figures:
    await _served(tools[:2], f"{salt} warm-up")
    one_tool = [(await _served([tool], f"{salt} {number}"))[0] for number, tool in enumerate(tools)]
    requests = []
    for size in sizes:
        listed = [tools[number % len(tools)] for number in range(size)]
        costs = [await _served(listed, f"{salt} {size} {repeat}") for repeat in range(repeats)]
        delays, controls = [], []
        for repeat in range(pauses):
            begun = time.perf_counter()
            delays.append(await _delayed(listed, f"{salt} {size} {repeat} beside"))
            end = 2 * time.perf_counter() - begun
            controls.append(await _longest_pause(lambda end=end: time.perf_counter() >= end))  # type: ignore[misc]
        requests.append(Admitted(size, *map(Times.of, (*zip(*costs, strict=True), delays, controls))))
    return Figures(requests, Times.of(one_tool))


def _body(tools: Tools, salt: str) -> str:
    """Return a request whose schemas no other request has."""
    listed = []
    for number, tool in enumerate(tools):
        function = tool["function"]
        schema = {"type": "object"} | (function.get("parameters") or {}) | {"title": f"{salt} {number}"}
        name = f"{function['name'][:48]}_{number}"
        listed.append({"type": "function", "function": {**function, "name": name, "parameters": schema}})
    return json.dumps({"model": "kimi", "messages": [{"role": "user", "content": "x"}], "tools": listed})


async def _served(tools: Tools, salt: str) -> tuple[float, float]:
    """Return a request's CPU time, and the part of it on this thread, in milliseconds."""
    request = ChatCompletionRequest.model_validate_json(_body(tools, salt))
    before, on_loop = time.process_time(), time.thread_time()
    await _admit(request)
    return 1e3 * (time.process_time() - before), 1e3 * (time.thread_time() - on_loop)


async def _admit(request: Any) -> None:
    """Admit a request; the engine would receive what this leaves in it."""
    state = RequestState.of(request)
    state.history_calls = 0
    await request_hook.precompile(request, state, thinking=False)
    request_hook.constrain_request(request, thinking=False)
    state.enter()
    admitted = check_params(SamplingParams(extra_args=request.vllm_xargs), first=True)
    assert admitted is not None
    admitted.slow_tools(SLOW_SECONDS)


async def _delayed(tools: Tools, salt: str) -> float:
    """Return the longest pause of a coroutine beside a request, in milliseconds."""
    task = asyncio.create_task(_admit(ChatCompletionRequest.model_validate_json(_body(tools, salt))))
    longest = await _longest_pause(task.done)
    await task
    return longest


async def _longest_pause(is_over: Callable[[], bool]) -> float:
    """Return the longest time between two turns of this coroutine, in milliseconds."""
    longest, last, spent = 0.0, time.perf_counter(), time.process_time()
    while not is_over():
        await asyncio.sleep(0)
        now, cpu = time.perf_counter(), time.process_time()
        longest, last, spent = max(longest, min(now - last, cpu - spent)), now, cpu
    return 1e3 * longest


if __name__ == "__main__":
    sys.exit(main())
