"""Replaced answers, without a server: vLLM's own objects in, corrected ones out."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputItemDoneEvent, ResponseOutputMessage
from vllm import SamplingParams
from vllm.entrypoints.openai.responses.protocol import ResponseCompletedEvent, ResponsesRequest, ResponsesResponse

from constrained_k2.vllm_plugin.api_server import patched
from constrained_k2.vllm_plugin.shared.flags import TOOL_PARSER_NAME

OURS, OTHERS = (
    SimpleNamespace(parser=SimpleNamespace(tool_parser_cls=SimpleNamespace(name=name)))
    for name in (TOOL_PARSER_NAME, "hermes")
)


def message() -> ResponseOutputMessage:
    part: Any = {"type": "output_text", "text": "a", "annotations": []}
    return ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[part])


def call() -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(type="function_call", call_id="c", name="f", arguments="{}", status="completed")


def response(status: Any, items: list[Any]) -> ResponsesResponse:
    return ResponsesResponse.from_request(
        ResponsesRequest(input="x", model="m"), SamplingParams(max_tokens=5),
        model_name="m", created_time=0, output=items, status=status, usage=None,
    )  # fmt: skip


async def answered(serving: Any, answer: Any) -> Any:
    """Return an answer of vLLM's, as it is after the replacement."""

    async def vllm(*_: Any) -> Any:
        return answer

    return await patched.responses(vllm)(serving, "request")


def streamed(serving: Any, status: Any, items: list[Any]) -> list[Any]:
    """The events of a stream with these items, of each its end alone."""
    closed = []

    async def events() -> AsyncIterator[Any]:
        done: Any = {"type": "response.output_item.done"}
        completed: Any = {"type": "response.completed", "response": response(status, items)}
        try:
            for at, item in enumerate(items):
                yield ResponseOutputItemDoneEvent(sequence_number=at, output_index=at, item=item, **done)
            yield ResponseCompletedEvent(sequence_number=len(items), **completed)
        finally:
            closed.append(True)

    async def collected() -> list[Any]:
        return [event async for event in await answered(serving, events())]

    found = asyncio.run(collected())
    assert closed
    return found


@pytest.mark.parametrize(
    ("serving", "status", "made", "expected"),
    [
        *((serving, "completed", [message, call], ["completed", "completed"]) for serving in (OURS, OTHERS)),
        (OURS, "completed", [], []),
        (OURS, "cancelled", [message], ["completed"]),
        (OTHERS, "incomplete", [message], ["completed"]),
        (OURS, "incomplete", [message], ["incomplete"]),
        (OURS, "incomplete", [call, message], ["completed", "incomplete"]),
        (OURS, "incomplete", [message, call], ["completed", "completed"]),  # a call is shown only if it is whole
        (OURS, "incomplete", [], []),
    ],
)
def test_only_a_response_of_ours_that_is_cut_is_incomplete(
    serving: Any, status: Any, made: list[Any], expected: list[str]
) -> None:
    *items, last = events = streamed(serving, status, [make() for make in made])
    is_cut = serving is OURS and status == "incomplete"
    end = "response.incomplete" if is_cut else "response.completed"
    assert [event.type for event in events] == ["response.output_item.done"] * len(made) + [end]
    assert [event.sequence_number for event in events] == list(range(len(made) + 1))
    shown = asyncio.run(answered(serving, response(status, [make() for make in made])))
    for given in ([event.item for event in items], last.response.output, shown.output):
        assert [item.status for item in given] == expected
    if is_cut:
        assert last.response.incomplete_details.reason == "max_output_tokens"
        assert last.model_dump(mode="json")["response"].keys() == response(status, []).model_dump().keys()
    else:
        assert type(last) is ResponseCompletedEvent


def test_another_answer_is_handed_on() -> None:
    assert asyncio.run(answered(OURS, "an error")) == "an error"
