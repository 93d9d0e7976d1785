"""Admits chat requests the way that the API server does, without an engine."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from unittest.mock import patch

from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

from benchmarks.host.timing import Times, collected_before
from constrained_k2.compiler import shape_admission
from constrained_k2.vllm_plugin.api_server import request_hook
from constrained_k2.vllm_plugin.api_server.admission import check_params
from constrained_k2.vllm_plugin.api_server.request_state import RequestState
from constrained_k2.vllm_plugin.byte_compiler import SLOW_SECONDS
from constrained_k2.vllm_plugin.settings import Server

Tools = Sequence[dict[str, Any]]
SIZES = (1, 16, 64, 258)


@dataclass(frozen=True, slots=True)
class Admitted:
    """Requests with so many new tools, in milliseconds; each distribution is over requests.

    Attributes:
        tools: Tools in a request.
        reading: CPU time in which vLLM reads the request's JSON, without this package.
        cpu: CPU time of all threads to admit the request, from the request hook to its sampling parameters.
        on_loop: The part of ``cpu`` that runs on the thread of the event loop.
        delay: The longest time for which another coroutine does not run meanwhile, without the time in which the
            machine runs other processes.
        control: The same over as long a time after each request, in which nothing is admitted.
    """

    tools: int
    reading: Times
    cpu: Times
    on_loop: Times
    delay: Times
    control: Times


@dataclass(frozen=True, slots=True)
class Figures:
    """One arm: requests of each size, and requests with one tool, CPU time in milliseconds over all tools."""

    requests: list[Admitted]
    one_tool: Times

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return asdict(self)


@contextmanager
def compiling_all() -> Iterator[None]:
    """Have admission compile every schema, also those that it admits by their shape."""
    with patch.object(shape_admission, "plain_shape", lambda _: None):
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
    one_tool = [(await _served([tool], f"{salt} {number}")).cpu for number, tool in enumerate(tools)]
    requests = []
    for size in sizes:
        listed = [tools[number % len(tools)] for number in range(size)]
        costs = [await _served(listed, f"{salt} {size} {repeat}") for repeat in range(repeats)]
        delays, controls = [], []
        for repeat in range(pauses):
            delay, seconds = await _delayed(listed, f"{salt} {size} {repeat} beside")
            delays.append(delay)
            controls.append(await _undelayed(seconds))
        requests.append(
            Admitted(
                size,
                Times.of([cost.reading for cost in costs]),
                Times.of([cost.cpu for cost in costs]),
                Times.of([cost.on_loop for cost in costs]),
                Times.of(delays),
                Times.of(controls),
            )
        )
    return Figures(requests, Times.of(one_tool))


@dataclass(frozen=True, slots=True)
class _Cost:
    reading: float
    cpu: float
    on_loop: float


def _body(tools: Tools, salt: str) -> str:
    """Return a request whose schemas no other request has."""
    listed = []
    for number, tool in enumerate(tools):
        function = tool["function"]
        schema = {"type": "object"} | (function.get("parameters") or {}) | {"title": f"{salt} {number}"}
        name = f"{function['name'][:48]}_{number}"
        listed.append({"type": "function", "function": {**function, "name": name, "parameters": schema}})
    return json.dumps({"model": "kimi", "messages": [{"role": "user", "content": "x"}], "tools": listed})


async def _served(tools: Tools, salt: str) -> _Cost:
    body = _body(tools, salt)
    before = time.process_time()
    request = ChatCompletionRequest.model_validate_json(body)
    read, on_loop = time.process_time(), time.thread_time()
    await _admit(request)
    return _Cost(1e3 * (read - before), 1e3 * (time.process_time() - read), 1e3 * (time.thread_time() - on_loop))


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


async def _delayed(tools: Tools, salt: str) -> tuple[float, float]:
    """Return the longest pause of a coroutine beside a request, in milliseconds, and the request's seconds."""
    request = ChatCompletionRequest.model_validate_json(_body(tools, salt))
    begun, task = time.perf_counter(), asyncio.create_task(_admit(request))
    longest = await _longest_pause(task.done)
    seconds = time.perf_counter() - begun
    await task
    return longest, seconds


async def _undelayed(seconds: float) -> float:
    """Return the longest pause of a coroutine while nothing is admitted, in milliseconds."""
    end = time.perf_counter() + seconds
    return await _longest_pause(lambda: time.perf_counter() >= end)


async def _longest_pause(is_over: Callable[[], bool]) -> float:
    """Return the longest time between two turns of this coroutine, in milliseconds."""
    longest, last, spent = 0.0, time.perf_counter(), time.process_time()
    while not is_over():
        await asyncio.sleep(0)
        now, cpu = time.perf_counter(), time.process_time()
        longest, last, spent = max(longest, min(now - last, cpu - spent)), now, cpu
    return 1e3 * longest
