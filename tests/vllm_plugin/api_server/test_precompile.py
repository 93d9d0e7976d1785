"""Tools are compiled before their request is admitted, beside what else the server does."""

import asyncio
import contextvars
import copy
import json
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

from constrained_k2 import ToolCallSpec, UnsupportedSchema
from constrained_k2.threads import interruptible
from constrained_k2.vllm_plugin.api_server import admission, patched, request_hook
from constrained_k2.vllm_plugin.api_server.request_state import RequestState
from tests.kit.tools import tool

GOOD: dict[str, Any] = {"type": "object"}
BAD: dict[str, Any] = {"not": {}}


def request(schema: Any = GOOD, **fields: Any) -> Any:
    given = {"tools": [tool("f", schema, strict=schema is BAD)], "messages": [{"role": "user", "content": "x"}]}
    return ChatCompletionRequest.model_validate({"model": "m"} | given | fields)


def precompile(asked: Any) -> RequestState:
    state = RequestState.of(asked)
    asyncio.run(request_hook.precompile(asked, state, thinking=False))
    return state


def test_other_requests_go_on_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    others_went_on = threading.Event()
    compiled_tools = SimpleNamespace(resolved_spec=ToolCallSpec())

    def compile_tools(*_: Any, **__: Any) -> Any:
        assert others_went_on.wait(60)
        return compiled_tools

    monkeypatch.setattr(request_hook, "compile_tools", compile_tools)

    async def serve() -> Any:
        state = RequestState()
        compiled = asyncio.create_task(request_hook.precompile(request(), state, thinking=False))
        await asyncio.sleep(0)
        others_went_on.set()
        await compiled
        return state.compiled

    assert asyncio.run(serve()) is compiled_tools


def test_the_thread_sleeps_between_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it does with a tool is no longer than the tool; the event loop never sleeps."""
    sleepers: list[str] = []
    monkeypatch.setattr(interruptible, "_SLICE_SECONDS", -1.0)
    monkeypatch.setattr(time, "sleep", lambda _: sleepers.append(threading.current_thread().name))
    counts = []
    for count in (1, 11):
        asked = request(tools=[{"type": "function", "function": {"name": f"f{number}"}} for number in range(count)])
        sleepers.clear()
        state = precompile(asked)
        assert all(name.startswith("constrained_k2 admission") for name in sleepers)
        counts.append(len(sleepers))
        assert state.compiled is not None and state.compiled.fast_path_count == count
        state.compiled.admit()
        state.compiled.spec.to_json()
        assert len(sleepers) == counts[-1]
    assert counts[1] - counts[0] == 10 * len(("decode", "read", "admit", "write"))


@pytest.mark.parametrize("fields", [{"tools": None}, {"vllm_xargs": {"constrained_k2": "off"}}])
def test_nothing_is_compiled_where_nothing_is_constrained(fields: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_hook, "compile_tools", lambda *_, **__: pytest.fail("compiled"))
    tokenize = SimpleNamespace(tools=[object()], vllm_xargs={})
    for asked in (request(**fields), tokenize):
        state = precompile(asked)
        assert state.compiled is None and state.error is None


def test_a_request_is_read_and_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = request(), request(BAD)
    compiled = precompile(good).compiled
    precompile(bad)
    monkeypatch.setattr(admission, "compiled_over_bytes", lambda *_: pytest.fail("compiled again"))
    monkeypatch.setattr(ToolCallSpec, "from_openai", lambda *_, **__: pytest.fail("read again"))
    monkeypatch.setattr(ToolCallSpec, "from_json", lambda *_, **__: pytest.fail("read again"))
    request_hook.constrain_request(good, thinking=False)
    with pytest.raises(UnsupportedSchema, match="no value"):
        request_hook.constrain_request(bad, thinking=False)
    RequestState.of(good).enter()
    params = good.to_sampling_params(10, {})
    assert admission.check_params(params) is compiled is not None
    assert params.extra_args["constrained_k2"] is RequestState.of(good).text


def test_a_request_that_begins_in_the_context_of_another_takes_nothing_from_it() -> None:
    """As a pipelined request under uvicorn, and a background response: their tasks copy the context they begin in."""
    first, state = request(), RequestState(exact_arguments=True)
    with state.rendering(first):
        request_hook.constrain_request(first, thinking=False)
    assert admission.check_params(first.to_sampling_params(10, {})) is state.compiled  # served: the state stays

    def second() -> None:
        assert RequestState.current() is state
        assert admission.check_params(SamplingParams()) is None
        call = {"function": {"name": "f", "arguments": '{ "a": 1}'}}
        seen: list[Any] = []
        patched.postprocess_messages(lambda messages: seen.append(copy.deepcopy(messages)))(
            [{"role": "assistant", "tool_calls": [call]}]
        )
        assert seen == [[{"role": "assistant", "tool_calls": [call]}]]  # as vLLM gives arguments to its template
        assert state.text is not None
        equal = json.loads(json.dumps(state.text))
        other = admission.check_params(SamplingParams(extra_args={"constrained_k2": equal}))
        assert other is not None and other is not state.compiled
        assert RequestState.current() is not state

    contextvars.copy_context().run(second)
    assert RequestState.current() is state


def test_requests_whose_tasks_run_by_turns_keep_their_states() -> None:
    async def serve(schema: Any) -> None:
        asked = request(schema)
        state = RequestState(exact_arguments=True)
        with state.rendering(asked):
            await request_hook.precompile(asked, state, thinking=False)
            assert RequestState.current() is state and state.exact_arguments
            request_hook.constrain_request(asked, thinking=False)
        await asyncio.sleep(0)
        assert admission.check_params(asked.to_sampling_params(10, {})) is state.compiled is not None

    async def connection() -> None:
        """One task, as under a middleware that serves a connection's requests one after the other."""
        await asyncio.gather(*(serve(GOOD | {"maxProperties": number}) for number in range(4)))
        await serve(GOOD)
        await serve(GOOD)

    asyncio.run(connection())


def test_the_state_is_not_in_what_vllm_serializes() -> None:
    asked = request()
    before = asked.model_dump()
    RequestState.of(asked)
    assert asked.model_dump() == before
    assert "_constrained_k2" not in asked.model_dump_json()
    assert RequestState.attached_to(request(_constrained_k2="forged")) is None
