"""Requests that have only what their models require, or null where a model takes it, read by all that reads requests.

Also with the sources of each other vLLM in ``build/`` (scripts/other_vllm.sh).
"""

import asyncio
import copy
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any, get_args

import pytest
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import BatchChatCompletionRequest, ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.scale_out.token_in_token_out import protocol as scale_out
from vllm.entrypoints.serve.tokenize.protocol import TokenizeChatRequest
from vllm.exceptions import VLLMValidationError
from vllm.version import __version__

from constrained_k2 import ToolCall, render_tool_calls
from constrained_k2.vllm_plugin.api_server import patched
from constrained_k2.vllm_plugin.api_server.admission import Admission, check_params
from constrained_k2.vllm_plugin.api_server.middleware import rewritten
from constrained_k2.vllm_plugin.shared.server import vocabulary_of
from tests.vllm_plugin.parsers import Composed

ROOT = Path(__file__).resolve().parents[3]
OTHERS = [folder for folder in sorted((ROOT / "build").glob("vllm-*")) if folder.name != f"vllm-{__version__}"]

MESSAGES = [{"role": "user", "content": "x"}]
TOOL = {"type": "function", "function": {"name": "f"}}
CHAT: dict[str, Any] = {"messages": MESSAGES}
ASKING: dict[str, Any] = CHAT | {"model": "m"}
LIMITED = ASKING | {"max_tokens": 9}
GENERATED = {"request_id": "r", "choices": [{"index": 0, "token_ids": [1]}]}
BODIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "chat": (ChatCompletionRequest, CHAT),
    "chat, tools": (ChatCompletionRequest, CHAT | {"tools": [TOOL]}),
    "chats": (BatchChatCompletionRequest, {"messages": [MESSAGES]}),
    "responses": (ResponsesRequest, {"input": "x"}),
    "responses, tools": (ResponsesRequest, {"input": "x", "tools": [{"type": "function", "name": "f"}]}),
    "completion": (CompletionRequest, {"prompt": "x"}),
    "messages": (AnthropicMessagesRequest, LIMITED),
    "messages, tools": (AnthropicMessagesRequest, LIMITED | {"tools": [{"name": "f", "input_schema": {"type": "object"}}]}),
    "counted messages": (AnthropicCountTokensRequest, ASKING),
    "tokenized chat": (TokenizeChatRequest, CHAT),
    "generate": (scale_out.GenerateRequest, {"token_ids": [1], "sampling_params": {}}),
    "derendered chat": (scale_out.DerenderChatRequest, {"generate_response": GENERATED, "chat_request": CHAT}),
    "derendered completion": (scale_out.DerenderCompletionRequest, {
        "generate_responses": [GENERATED], "completion_request": {"prompt": "x"}}),
}  # fmt: skip


INPUTS = {ChatCompletionRequest: "messages", ResponsesRequest: "input", CompletionRequest: "prompt"}
"""The requests that our middleware reads -> the field that holds their input."""


@pytest.fixture(scope="module", params=[("kimi_k2", None), ("kimi_k2", "kimi_k2"), ("kimi_k3", "kimi_k3")], ids=str)
def reading(request: pytest.FixtureRequest, model: Path, k3_model: Path) -> Composed:
    """Our tool parser as vLLM composes it for a model's tokenizer."""
    wire_format, reasoning = request.param
    directory = k3_model if wire_format == "kimi_k3" else model
    return Composed(AutoTokenizer.from_pretrained(directory, trust_remote_code=True), reasoning)


def validated(model: Any, body: dict[str, Any]) -> Any:
    """The request that vLLM validates from a body after our middleware."""
    return model.model_validate(rewritten(body, INPUTS[model]) if model in INPUTS else body)


def nulls(model: Any, body: dict[str, Any]) -> dict[str, Any]:
    """The body with null in every field that takes it."""
    fields = model.model_fields.items()
    return {name: None for name, field in fields if NoneType in get_args(field.annotation)} | body


def read(request: Any, reading: Composed) -> Any:
    """Read a request in all places that do, and return what they make of it."""
    match request:
        case scale_out.GenerateRequest():
            return admitted(request.sampling_params)
        case scale_out.DerenderChatRequest():
            return parsed(request.chat_request, reading)
        case scale_out.DerenderCompletionRequest():
            request = request.completion_request
            handed_on = SimpleNamespace(sampling_params=request, prompt_token_ids=None)
            assert patched.from_new_request(lambda *_: "made")(None, reading.tokenizer, handed_on) == "made"
            return None
        case CompletionRequest():
            return admitted(request.to_sampling_params(9, {}))
        case AnthropicMessagesRequest() | AnthropicCountTokensRequest():
            request = AnthropicServingMessages.to_chat_completion_request(request)
        case BatchChatCompletionRequest():
            request = request.to_chat_completion_request(request.messages[0])
    rendered(request, reading)
    if isinstance(request, TokenizeChatRequest):
        return None
    request = reading.make(request).adjust_request(request)
    return admitted(request.to_sampling_params(9, {})), parsed(request, reading)


def rendered(request: Any, reading: Composed) -> None:
    async def original(self: Any, request: Any, messages: Any, default_template: Any, # noqa: ARG001, RUF100
                       default_template_content_format: Any, tool_dicts: Any) -> None: ...  # fmt: skip

    tokenizers = SimpleNamespace(get_tokenizer=lambda: reading.tokenizer)
    config = SimpleNamespace(trust_remote_code=False)
    renderer = SimpleNamespace(parser=reading.parser_class, renderer=tokenizers, model_config=config)
    tools = [each.model_dump() for each in getattr(request, "tools", None) or ()] or None
    asyncio.run(patched.preprocess_chat(original)(renderer, request, MESSAGES, "a template", "auto", tools))


def admitted(params: SamplingParams) -> Any:
    check_params(params, first=True)
    Admission(None).check({"params": params})
    return params.extra_args, params.skip_special_tokens, params.stop, params.structured_outputs


def parsed(request: Any, reading: Composed) -> Any:
    """A turn with a special token that the client did not ask for, and with a call if it may, whole and as a stream."""
    vocabulary = vocabulary_of(reading.tokenizer)
    stray = next(token for text, token in vocabulary.special_tokens.items() if text == "[PAD]")
    calls = render_tool_calls([ToolCall("f", 0, "{}")] if request.tools else [], vocabulary)
    ids = [*vocabulary.encode("Hm"), stray, *calls, vocabulary.format.turn_end]
    text = vocabulary.decode(ids[:-1])
    whole = reading.make(request).parse(text, request, enable_auto_tools=True, model_output_token_ids=ids)
    delta = reading.make(request).parse_delta(text, ids, request, [1, 2], finished=True)
    shown = delta.reasoning, delta.content, [call.function.name for call in delta.tool_calls]
    assert shown == (whole[0], whole[1], [call.name for call in whole[2] or ()])
    return shown


@pytest.mark.parametrize("name", list(BODIES))
def test_a_request_without_optional_fields(name: str, reading: Composed) -> None:
    model, body = BODIES[name]
    bare, given = validated(model, body), validated(model, nulls(model, body))
    assert read(given, reading) == read(bare, reading)


_FORM = {"type": "json_schema", "name": "a", "schema": {}, "json_schema": {"name": "a", "schema": {"type": "object"}}}
_GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
VALUES: list[Any] = [
    None, True, 5, -1, "x", "none", [], ["x"], [5], {}, {"format": _FORM}, _FORM, {"type": "json_object"}, {"regex": "a+"},
    MESSAGES, [{"role": "tool", "content": 5}], [TOOL], [{"type": "custom", "name": "c", "format": _GRAMMAR}],
    {"type": "custom", "name": "f"}, {"type": "allowed_tools", "mode": "auto", "tools": [TOOL]},
    {"constrained_k2": 5}, {"thinking": "yes"},
]  # fmt: skip
"""Values for fields: some are valid for a field of some endpoint, others for none."""

FIELDS = frozenset(name for model, _ in BODIES.values() for name in model.model_fields) | {"_constrained_k2"}
HANDED_ON = ("chats", "derendered chat", "derendered completion")
"""Left out: vLLM passes all fields of ``chats`` on to a chat, and the other two contain another request."""


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("name", [name for name in BODIES if name not in HANDED_ON])
def test_fields_of_other_endpoints_are_ignored(name: str, value: Any, reading: Composed) -> None:
    """All at once; then, one at a time, those for response formats, stop strings, tools and messages."""
    model, body = BODIES[name]
    others = dict.fromkeys(FIELDS - model.model_fields.keys(), value)
    expected = read(validated(model, body), reading)
    alone = others.keys() & {
        "response_format",
        "text",
        "structured_outputs",
        "stop",
        "tools",
        "tool_choice",
        "messages",
    }
    for fields in (others, *({field: value} for field in sorted(alone))):
        assert read(validated(model, body | copy.deepcopy(fields)), reading) == expected


OWN = {"vllm_xargs", "use_beam_search"}
"""The fields that this package may refuse: its own, and beam search with tools."""


@pytest.mark.parametrize("reading", [("kimi_k2", "kimi_k2")], indirect=True, ids=str)
@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("name", [name for name in BODIES if name not in HANDED_ON])
def test_what_vllm_takes_is_taken(name: str, value: Any, reading: Composed) -> None:
    model, body = BODIES[name]
    for field in model.model_fields.keys() - OWN:
        given = body | {field: value}
        try:
            request = model.model_validate(copy.deepcopy(given))
            if model is AnthropicMessagesRequest:
                request = AnthropicServingMessages.to_chat_completion_request(request)
            if hasattr(request, "to_sampling_params"):
                request.to_sampling_params(9, {})
        except Exception:  # noqa: BLE001 - vLLM's own answer is an error
            continue
        read(validated(model, copy.deepcopy(given)), reading)


def test_an_empty_list_of_tools_is_as_with_vllm(reading: Composed) -> None:
    """vLLM refuses an empty list of tools in a chat; other endpoints treat it as no tools."""
    with pytest.raises((ValueError, VLLMValidationError), match="`tools` must not be an empty array"):
        validated(ChatCompletionRequest, CHAT | {"tools": []})
    for model, body in (BODIES["responses"], BODIES["messages"]):
        assert read(validated(model, body | {"tools": []}), reading) == read(validated(model, body), reading)


@pytest.mark.parametrize("name", ["chat, tools", "responses, tools", "messages, tools"])
def test_its_tools_are_constrained_and_its_calls_are_read(name: str, reading: Composed) -> None:
    model, body = BODIES[name]
    (extra, *_), (*_, calls) = read(model.model_validate(body), reading)
    assert json.loads(extra["constrained_k2"])["tool_choice"] == "auto"
    assert calls == ["f"]


@pytest.mark.parametrize("count", [0, 3])
def test_an_answer_that_the_server_that_generated_it_derenders(count: int, reading: Composed) -> None:
    """By vLLM 0.33's ``output_mode: "derender"``, with tools and history as they travel there."""
    if not hasattr(scale_out, "ParseContext"):
        pytest.skip(f"vLLM {__version__} has no parse_context")
    derenderer = object.__new__(import_module("vllm.renderers.online_derenderer").OnlineDerenderer)
    vars(derenderer).update(
        parser=reading.parser_class, model_config=None, enable_auto_tools=True,
        renderer=SimpleNamespace(get_tokenizer=lambda: reading.tokenizer),
    )  # fmt: skip
    vocabulary = vocabulary_of(reading.tokenizer)
    turn_end = vocabulary.format.turn_end
    calls = [ToolCall("f", count, '{"a": "北京"}'), ToolCall("f", count + 1, "{}")]

    def derendered(ids: list[int], text: str, **context: Any) -> tuple[Any, str]:
        request = scale_out.ParseContext.model_validate({"tools": [TOOL], "tool_choice": "auto"} | context)
        output = SimpleNamespace(text=text, token_ids=ids, finish_reason="stop")
        (found,) = derenderer._derender_text_choices([output], request.to_chat_request(), count, [1, 2])
        return found

    ids = [*vocabulary.encode("Look"), *render_tool_calls(calls, vocabulary), turn_end]
    message, reason = derendered(ids, vocabulary.decode(ids[:-1]))
    assert (message.content, reason) == ("Look", "tool_calls")
    assert [(each.id, each.function.name, each.function.arguments) for each in message.tool_calls] == [
        (call.id, call.name, call.arguments) for call in calls
    ]
    # A stop string, which the context does not name, has ended the text.
    message, reason = derendered(vocabulary.encode("Hello END and"), "Hello ")
    assert (message.content, reason, message.tool_calls) == ("Hello ", "stop", [])
    # Without tools.
    stray = [*vocabulary.encode("Hi"), vocabulary.special_tokens["[PAD]"], *vocabulary.encode("ho"), turn_end]
    message, reason = derendered(stray, vocabulary.decode(stray[:-1]), tools=None, tool_choice="none")
    assert (message.content or message.reasoning, reason) == ("Hiho", "stop")


@pytest.mark.parametrize("folder", OTHERS, ids=lambda folder: folder.name)
@pytest.mark.slow
def test_on_the_sources_of_another_version(folder: Path) -> None:
    paths = os.pathsep.join((str(folder), str(ROOT)))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not sources", __file__]
    environment = os.environ | {"PYTHONPATH": paths, "VLLM_TARGET_DEVICE": "cpu"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-6000:]
