"""Replaced answers, without a server: vLLM's own objects in, corrected ones out."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputItemDoneEvent, ResponseOutputMessage
from vllm import SamplingParams
from vllm.entrypoints.openai.responses.protocol import ResponseCompletedEvent, ResponsesRequest, ResponsesResponse

from constrained_k2.vllm_plugin.api_server import patched_answers
from constrained_k2.vllm_plugin.shared.flags import TOOL_PARSER_NAME

OURS = SimpleNamespace(parser=SimpleNamespace(tool_parser_cls=SimpleNamespace(name=TOOL_PARSER_NAME)))
OTHERS = SimpleNamespace(parser=SimpleNamespace(tool_parser_cls=SimpleNamespace(name="hermes")))


def message(text: str) -> ResponseOutputMessage:
    part: Any = {"type": "output_text", "text": text, "annotations": []}
    return ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[part])


def call() -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(type="function_call", call_id="c", name="f", arguments="{}", status="completed")


def response(status: Any, *items: Any) -> ResponsesResponse:
    return ResponsesResponse.from_request(
        ResponsesRequest(input="x", model="m"),
        SamplingParams(max_tokens=5),
        model_name="m",
        created_time=0,
        output=list(items),
        status=status,
        usage=None,
    )


def streamed(serving: Any, status: Any, *items: Any) -> list[Any]:
    """The events of a stream with these items, of each its end alone."""
    closed = []

    async def events() -> AsyncIterator[Any]:
        try:
            for at, item in enumerate(items):
                yield ResponseOutputItemDoneEvent(
                    type="response.output_item.done", sequence_number=at, output_index=at, item=item
                )
            yield ResponseCompletedEvent(
                type="response.completed", sequence_number=len(items), response=response(status, *items)
            )
        finally:
            closed.append(True)

    async def vllm(*_: Any) -> Any:
        return events()

    async def collected() -> list[Any]:
        return [event async for event in await patched_answers.responses(vllm)(serving, "request")]

    found = asyncio.run(collected())
    assert closed
    return found


def statuses(items: list[Any]) -> list[str]:
    return [item.status for item in items]


@pytest.mark.parametrize("serving", [OURS, OTHERS], ids=["ours", "others"])
def test_a_stream_that_is_not_cut_is_vllms_own(serving: Any) -> None:
    for status, items in (("completed", [message("a"), call()]), ("completed", []), ("cancelled", [message("a")])):
        events = streamed(serving, status, *items)
        assert [event.sequence_number for event in events] == list(range(len(items) + 1))
        assert type(events[-1]) is ResponseCompletedEvent
        assert statuses(events[-1].response.output) == ["completed"] * len(items)
    events = streamed(OTHERS, "incomplete", message("a"))
    assert [event.type for event in events] == ["response.output_item.done", "response.completed"]
    assert events[0].item.status == "completed"


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([message("a")], ["incomplete"]),
        ([call(), message("a")], ["completed", "incomplete"]),
        ([message("a"), call()], ["completed", "completed"]),  # a call is shown only if it is whole
        ([], []),
    ],
)
def test_a_response_that_is_cut_is_incomplete(items: list[Any], expected: list[str]) -> None:
    copies = [item.model_copy() for item in items]
    events = streamed(OURS, "incomplete", *copies)
    assert [event.type for event in events] == ["response.output_item.done"] * len(items) + ["response.incomplete"]
    assert [event.sequence_number for event in events] == list(range(len(items) + 1))
    assert statuses([event.item for event in events[:-1]]) == expected
    assert statuses(events[-1].response.output) == expected
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"
    shown = events[-1].model_dump(mode="json")["response"]
    assert set(shown) == set(response("incomplete").model_dump())

    async def vllm(*_: Any) -> Any:
        return response("incomplete", *(item.model_copy() for item in items))

    whole = asyncio.run(patched_answers.responses(vllm)(OURS, "request"))
    assert statuses(whole.output) == expected


def test_another_answer_is_handed_on() -> None:
    async def vllm(*_: Any) -> Any:
        return "an error"

    assert asyncio.run(patched_answers.responses(vllm)(OURS, "request")) == "an error"
