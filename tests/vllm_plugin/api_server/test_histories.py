"""Histories of every form, through vLLM's validation and rendering, with our repair and without it."""

import copy
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import construct_input_messages
from vllm.exceptions import VLLMValidationError
from vllm.renderers.chat_utils import parse_chat_messages
from vllm.renderers.hf import safe_apply_chat_template

from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.prompts.special_text import KIMI_SPECIALS
from constrained_k2.vllm_plugin.api_server import repair
from constrained_k2.vllm_plugin.api_server.histories import accepted
from constrained_k2.vllm_plugin.api_server.middleware import rewritten
from constrained_k2.vllm_plugin.api_server.request_state import RequestState
from constrained_k2.vllm_plugin.shared.server import Server
from constrained_k2.vllm_plugin.shared.settings import Settings
from tests.kit.budget import tries
from tests.prompts.test_goldens import TEMPLATES, TEST_TEMPLATE
from tests.vllm_plugin import histories
from tests.vllm_plugin.histories import GO, MESSAGE, THOUGHT, back, call, output, said, user

MODEL: Any = SimpleNamespace(multimodal_config=None, enable_prompt_embeds=False)
SHORT = {
    "<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>": "~",
    "<|im_user|>": "U|",
    "<|im_assistant|>": "A|",
    "<|im_system|>": "S|",
    "<|im_middle|>": ">",
    "<|im_end|>": "$",
    **dict(zip(KIMI_K2.marker_texts.values(), ["{{", "}}", "«", "→", "»"], strict=False)),
}
REFUSALS = (ValidationError, VLLMValidationError)
CHATS = histories.ROLES | {f"content: {name}": row for name, row in histories.CONTENTS.items()}
CHATS |= {f"call: {name}": row for name, row in histories.CALLS.items()}


def chat(messages: list[Any]) -> tuple[Any, list[Any]]:
    """A validated request, and its messages as vLLM's renderer gets them."""
    body = rewritten({"model": "k", "messages": copy.deepcopy(messages)}, "messages")
    request = ChatCompletionRequest.model_validate(body)
    return request, request.messages


def responses(items: list[Any]) -> tuple[Any, list[Any]]:
    request = ResponsesRequest.model_validate(rewritten({"model": "k", "input": copy.deepcopy(items)}, "input"))
    return request, construct_input_messages(request_input=request.input)


def anthropic(messages: list[Any]) -> tuple[Any, list[Any]]:
    body = AnthropicMessagesRequest.model_validate({"model": "k", "max_tokens": 9, "messages": copy.deepcopy(messages)})
    request = AnthropicServingMessages.to_chat_completion_request(body)
    return request, request.messages


def rendered(request: Any, tokenizer: Any, template: str, given: dict[str, Any]) -> str:
    """The prompt as vLLM renders it, abbreviated."""
    content_format = given["default_template_content_format"]
    content_format = "openai" if content_format == "auto" else content_format
    messages, _, _ = parse_chat_messages(given["messages"], MODEL, content_format)
    variables = request.build_chat_params(None, "auto").chat_template_kwargs
    fields = {name: variables[name] for name in ("add_generation_prompt", "continue_final_message")}
    text = safe_apply_chat_template(MODEL, tokenizer, messages, chat_template=template, tokenize=False, **fields)
    for long, short in SHORT.items():
        text = text.replace(long, short)
    return text


def stock(messages: list[Any], tokenizer: Any, template: str) -> str | None:
    """The prompt of vLLM alone; None if it refuses the request."""
    try:
        off = {"vllm_xargs": {"constrained_k2_repair": "off"}}
        request = ChatCompletionRequest.model_validate({"model": "k", "messages": copy.deepcopy(messages)} | off)
        given = {"messages": request.messages, "default_template_content_format": "auto"}
        return rendered(request, tokenizer, template, given)
    except REFUSALS:
        return None


def ours(read: tuple[Any, list[Any]], tokenizer: Any, template: str) -> tuple[str, int | None]:
    """The prompt, and the index of the call that comes next."""
    request, messages = read
    given = {"request": request, "messages": messages, "default_template_content_format": "auto"}
    state: RequestState = repair.prepare(given, KIMI_SPECIALS, template)
    with state.rendering(request):
        return rendered(request, tokenizer, template, given), state.history_calls


READ = {
    "chat": (CHATS, chat, TEST_TEMPLATE),
    "reasoning": (histories.REASONING, chat, TEMPLATES / "k2_5.jinja"),
    "item": (histories.ITEMS, responses, TEST_TEMPLATE),
    "reasoning item": (histories.REASONING_ITEMS, responses, TEMPLATES / "k2_5.jinja"),
    "block": (histories.BLOCKS, anthropic, TEMPLATES / "k2_5.jinja"),
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, (table, _, _) in READ.items() for name in table])
def test_a_history_is_rendered_as_what_it_means(kind: str, name: str, tokenizer: Any) -> None:
    table, read, path = READ[kind]
    history, prompt = table[name]
    template = path.read_text()
    if prompt is None:
        assert read is not chat or stock(history, tokenizer, template) is None
        with pytest.raises(REFUSALS):
            ours(read(history), tokenizer, template)
        return
    assert ours(read(history), tokenizer, template) == (prompt, prompt.count("«"))


def test_an_incomplete_item_is_continued(tokenizer: Any) -> None:
    for content in ([output("So")], [output("S"), output("o")], "So"):
        items = [GO, MESSAGE | {"status": "incomplete", "content": content}]
        assert ours(responses(items), tokenizer, TEST_TEMPLATE.read_text())[0] == "~U|user>go$A|assistant>So"


def test_the_switches_leave_a_body_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    off: dict[str, Any] = {"messages": [user(["a"])], "vllm_xargs": {"constrained_k2_repair": "off"}}
    assert accepted(off, "messages") is off
    monkeypatch.setattr(Server, "settings", Settings(repair=False))
    body: dict[str, Any] = {"messages": [user(["a"])]}
    assert accepted(body, "messages") is body
    assert accepted(body | {"vllm_xargs": {"constrained_k2_repair": "on"}}, "messages")["messages"] == [user("a")]


@pytest.mark.parametrize(
    "body", [{}, {"messages": None}, {"messages": [5, None, "a"]}, {"input": "hi"}, {"input": [5]}]
)
def test_other_bodies_stay_as_they_are(body: dict[str, Any]) -> None:
    assert all(accepted(body, field) == body for field in ("messages", "input"))


KEYS = ["role", "type", "content", "text", "name", "tool_calls", "function", "custom", "arguments", "input", "output"]
KEYS += ["id", "call_id", "tool_call_id", "reasoning", "thinking", "summary", "action", "function_call", "refusal"]
VALUES = ["assistant", "tool", "user", "function_call", "function_call_output", "reasoning", "thinking", "message", "x"]
scalars = st.none() | st.booleans() | st.integers() | st.sampled_from(VALUES)
objects = st.dictionaries(st.sampled_from(KEYS), scalars, max_size=4)
deeper = objects | st.lists(scalars | objects, max_size=3) | st.dictionaries(st.sampled_from(KEYS), objects, max_size=3)
odd_messages = st.lists(
    st.dictionaries(st.sampled_from(KEYS), scalars | deeper | st.lists(deeper, max_size=2)), max_size=3
)


@settings(max_examples=tries(166, everything=500))
@given(odd_messages)
@example([{"role": "assistant", "tool_calls": [None]}])
@example([{"role": "assistant", "tool_calls": [{"custom": {}, "tool_calls": []}]}])
def test_no_history_raises_here(given_messages: list[Any]) -> None:
    """A value without a meaning is for vLLM to refuse; what is rewritten once stays."""
    for field in ("messages", "input"):
        once = accepted({field: copy.deepcopy(given_messages)}, field)
        assert accepted(once, field) == once


@pytest.mark.slow
def test_hostile_histories_take_linear_time() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    odd = [said([THOUGHT | {"thinking": deep}]), back(deep), said(tool_calls=[call(arguments=deep)])]
    assert accepted({"messages": odd}, "messages")["messages"] == odd
    parts = [{"type": "input_text", "text": "x"}] * 100_000
    many = {"messages": [user(parts), back(parts), *[said([THOUGHT])] * 50_000, said(tool_calls=[call(None)] * 50_000)]}
    started = time.process_time()
    assert len(accepted(many, "messages")["messages"]) == 50_003
    assert time.process_time() - started < 5


def test_vllm_alone_renders_the_simple_forms_alike(tokenizer: Any) -> None:
    """Else the comparison is of something else than what vLLM does."""
    template = TEST_TEMPLATE.read_text()
    given = {name: (stock(messages, tokenizer, template), prompt) for name, (messages, prompt) in CHATS.items()}
    same = {name for name, (found, prompt) in given.items() if found == prompt is not None}
    assert {"developer", "system in the middle", "name of a user", "content: text parts"} <= same
    refused = {name for name, (found, prompt) in given.items() if prompt and found is None}
    assert {"call: arguments, object", "call: custom", "content: input_text", "content: result, strings"} <= refused
