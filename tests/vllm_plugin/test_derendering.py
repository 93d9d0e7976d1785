"""Answers that another process has generated, parsed by vLLM's own derenderer with our parser, without a server."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from pydantic import TypeAdapter
from vllm.entrypoints.scale_out.token_in_token_out.protocol import (
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderStreamState,
    GenerateTokensResponse,
    GenerateTokensStreamResponse,
)
from vllm.exceptions import VLLMValidationError
from vllm.renderers.online_derenderer import OnlineDerenderer

from constrained_k2 import ToolCall, Vocabulary, render_tool_calls
from tests.vllm_plugin.parsers import TOOL, chat
from tests.vllm_plugin.patched import patch_vllm

CALLS = [ToolCall("f", 3, '{"a": "北京"}'), ToolCall("f", 4, "{}")]
SHOWN = [(call.id, call.name, call.arguments) for call in CALLS]
NAMED = {"type": "function", "function": {"name": "f"}}
Answer = tuple[str, str, list[tuple[str, str, str]], str | None]


@pytest.fixture(params=[None, "kimi_k2"], ids=["no_reasoning_parser", "reasoning_parser"])
def derenderer(request: pytest.FixtureRequest, tokenizer: Any) -> OnlineDerenderer:
    """A derenderer as `vllm launch render` makes it."""
    patch_vllm()
    renderer: Any = SimpleNamespace(
        tokenizer=tokenizer,
        get_tokenizer=lambda: tokenizer,
        get_eos_token_id=lambda: tokenizer.eos_token_id,
        _executor=ThreadPoolExecutor(1),
    )
    model: Any = SimpleNamespace(
        hf_config=SimpleNamespace(model_type="kimi_k2"), model="m", try_get_generation_config=dict
    )
    return OnlineDerenderer(
        model,
        renderer,
        request_logger=None,
        chat_template=None,
        chat_template_content_format="auto",
        enable_auto_tools=True,
        tool_parser="kimi_k2_constrained",
        reasoning_parser=request.param,
    )


def whole(
    derenderer: OnlineDerenderer, ids: list[int], request: Any, prompt: list[int], reason: str = "stop"
) -> Answer:
    response = GenerateTokensResponse.model_validate(
        {"choices": [{"index": 0, "token_ids": ids, "finish_reason": reason}]}
    )
    (choice,) = asyncio.run(derenderer.derender_chat(response, request, prompt))
    message = choice.message
    calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls]
    return message.reasoning or "", message.content or "", calls, choice.finish_reason


def streamed(
    derenderer: OnlineDerenderer, ids: list[int], size: int, request: Any, prompt: list[int], reason: str = "stop"
) -> Answer:
    """The answer as a client puts it together that sends a chunk at a time, with a request of its own each."""
    reasoning, content, finish = "", "", None
    calls: dict[int, list[str]] = {}
    state: DerenderStreamState | None = None
    for start in range(0, len(ids), size):
        last = start + size >= len(ids)
        choice = {"index": 0, "token_ids": ids[start : start + size], "finish_reason": reason if last else None}
        chunk = GenerateTokensStreamResponse.model_validate({"choices": [choice]})
        shown, state = asyncio.run(
            derenderer.derender_chat_stream(
                "m", chunk, state, request.model_copy(deep=True), prompt_token_ids=prompt
            )
        )  # fmt: skip
        (part,) = shown.choices
        reasoning += part.delta.reasoning or ""
        content += part.delta.content or ""
        finish = part.finish_reason
        for delta in part.delta.tool_calls:
            call = calls.setdefault(delta.index, ["", "", ""])
            assert delta.function is not None
            call[0] += delta.id or ""
            call[1] += delta.function.name or ""
            call[2] += delta.function.arguments or ""
    return reasoning, content, [(call[0], call[1], call[2]) for call in calls.values()], finish


def cases(vocabulary: Vocabulary) -> list[tuple[str, list[int], dict[str, Any], list[int], str, Answer]]:
    """Each with the fields of its chat request, the end of its prompt, the engine's reason, and the answer."""
    markers = vocabulary.format
    turn = render_tool_calls(CALLS, vocabulary)
    if turn[-1] != markers.turn_end:
        turn = [*turn, markers.turn_end]
    one = render_tool_calls(CALLS[:1], vocabulary)
    hm, hello = vocabulary.encode("Hm"), vocabulary.encode("Hello there")
    end = [markers.turn_end]
    opened = [1, markers.think_begin]
    plain = {"chat_template_kwargs": {"thinking": False}}  # else vLLM's reasoning parser reads all text as reasoning
    spelled = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    return [
        ("calls", turn, {}, [1], "stop", ("", "", SHOWN, "tool_calls")),
        ("null is auto", turn, {"tool_choice": None}, [1], "stop", ("", "", SHOWN, "tool_calls")),
        ("required", turn, {"tool_choice": "required", "stop": ["a"]}, [1], "stop", ("", "", SHOWN, "tool_calls")),
        ("named", one, {"tool_choice": NAMED}, [1], "stop", ("", "", SHOWN[:1], "stop")),
        ("none", [*hello, *end], {"tool_choice": "none"}, [1], "stop", ("", "Hello there", [], "stop")),
        ("a cut call", turn[:-4], {}, [1], "length", ("", "", SHOWN[:1], "length")),
        ("cut text", hello, {}, [1], "length", ("", "Hello there", [], "length")),
        ("reasoning", [*hm, markers.think_end, *turn], {}, opened, "stop", ("Hm", "", SHOWN, "tool_calls")),
        ("hidden", [*hm, markers.think_end, *turn], {"include_reasoning": False}, opened, "stop",
         ("", "", SHOWN, "tool_calls")),
        ("spelled", [*vocabulary.encode(spelled), *end], {}, [1], "stop", ("", spelled, [], "stop")),
        ("a stop", vocabulary.encode("Hello there"), {"stop": ["o th"]}, [1], "stop", ("", "Hell", [], "stop")),
        ("a stop shown", vocabulary.encode("Hello"), {"stop": ["lo"], "include_stop_str_in_output": True}, [1], "stop",
         ("", "Hello", [], "stop")),
        ("a stop in the reasoning", [*hm, *hello, markers.think_end, *hello, *end], {"stop": ["o th"]}, opened, "stop",
         ("HmHello there", "Hell", [], "stop")),
        ("a stop in the reasoning alone", [*hm, markers.think_end, *hello, *end], {"stop": ["Hm", ">H"]}, opened, "stop",
         ("Hm", "Hello there", [], "stop")),
        ("a stop in a call", [*hello, *turn], {"stop": ['"a"']}, [1], "stop", ("", "Hello there", SHOWN, "tool_calls")),
        # The client's own field of this name is none of vLLM's sampling parameters.
        ("a stop beside extra_args", hello, {"stop": ["o th"], "extra_args": {"constrained_k2": "{}"}}, [1], "stop",
         ("", "Hell", [], "stop")),
        ("no tools", [*hello, *end], {"tools": None} | plain, [1], "stop", ("", "Hello there", [], "stop")),
        ("no tools, all shown", [*hello, *end], {"tools": None, "skip_special_tokens": False} | plain, [1], "stop",
         ("", "Hello there", [], "stop")),
    ]  # fmt: skip


def only_cut_in_whole(name: str, expected: Answer) -> Answer:
    """A stream has shown a call before it is cut."""
    return (*expected[:2], [*SHOWN[:1], (SHOWN[1][0], "f", "{")], "length") if name == "a cut call" else expected


def test_an_answer_is_that_of_one_server(derenderer: OnlineDerenderer, vocabulary: Vocabulary) -> None:
    for name, ids, fields, prompt, reason, expected in cases(vocabulary):
        assert whole(derenderer, ids, chat(**fields), prompt, reason) == expected, name


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_stream_is_that_of_one_server(derenderer: OnlineDerenderer, vocabulary: Vocabulary, size: int) -> None:
    for name, ids, fields, prompt, reason, expected in cases(vocabulary):
        found = streamed(derenderer, ids, size, chat(**fields), prompt, reason)
        assert found == only_cut_in_whole(name, expected), name


def test_calls_that_nothing_constrained_are_recovered(derenderer: OnlineDerenderer, vocabulary: Vocabulary) -> None:
    markers = vocabulary.format
    header = [markers.section_begin, markers.call_begin, *vocabulary.encode("f:2"), markers.argument_begin]
    ids = [*header, *vocabulary.encode("{}"), markers.call_end, markers.section_end]
    off = chat(vllm_xargs={"constrained_k2": "off"})
    assert whole(derenderer, ids, off, [1])[2] == [("functions.f:2", "f", "{}")]
    assert whole(derenderer, ids, chat(), [1])[2] == []


def test_only_one_call_where_the_client_asked_for_one(derenderer: OnlineDerenderer, vocabulary: Vocabulary) -> None:
    ids = render_tool_calls(CALLS, vocabulary)
    request = chat(parallel_tool_calls=False, vllm_xargs={"constrained_k2": "off"})
    assert whole(derenderer, ids, request, [1])[2] == SHOWN[:1]


def test_ids_that_are_no_tokens_are_the_clients_mistake(derenderer: OnlineDerenderer) -> None:
    with pytest.raises(VLLMValidationError, match="1000000000 is not in the vocabulary"):
        whole(derenderer, [10**9], chat(), [1])


@pytest.mark.parametrize(
    "body",
    [
        {"generate_response": {"choices": []}},
        {"stream": True, "generate_chunk": {"choices": []}},
    ],
    ids=["whole", "stream"],
)
def test_the_request_may_be_of_any_form_that_was_rendered(body: dict[str, Any]) -> None:
    patch_vllm()
    allowed = {"mode": "required", "tools": [NAMED]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    request = {"messages": [{"role": "user", "content": "x"}], "model": "m", "tools": [TOOL], "tool_choice": choice}
    reader: TypeAdapter[Any] = TypeAdapter(DerenderChatRequest | DerenderChatStreamRequest)
    assert reader.validate_python({**body, "chat_request": request}).chat_request.tool_choice == "required"
