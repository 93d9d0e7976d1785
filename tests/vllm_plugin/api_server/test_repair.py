"""Repair between vLLM and its renderer, without a server."""

import copy
import json
import sys
from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.tokenize.protocol import TokenizeChatRequest
from vllm.exceptions import VLLMValidationError

from constrained_k2.prompts.special_text import KIMI_SPECIALS
from constrained_k2.vllm_plugin.api_server import repair
from constrained_k2.vllm_plugin.api_server.middleware import rewritten
from constrained_k2.vllm_plugin.api_server.request_state import RequestState
from constrained_k2.vllm_plugin.shared.settings import Server, Settings
from constrained_k2.vllm_plugin.start.apply import owner_of, rows

USER = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
OFF, ON = ({"vllm_xargs": {"constrained_k2_repair": switch}} for switch in ("off", "on"))


TAKES_TEXT = "{{ arguments if arguments is string else arguments | tojson }}"


def prepared(
    request: Any, content_format: str = "auto", template: str | None = TAKES_TEXT
) -> tuple[dict[str, Any], RequestState]:
    given = {"request": request, "messages": request.messages, "default_template_content_format": content_format}
    return given, repair.prepare(given, KIMI_SPECIALS, template)


def chat(*messages: Any, **fields: Any) -> Any:
    return ChatCompletionRequest(**rewritten({"model": "k", "messages": [*messages] or [USER]} | fields, "messages"))


@pytest.mark.parametrize(
    ("ours", "fields", "is_mended"),
    [({}, {}, True), ({}, OFF, False), ({"repair": False}, {}, False), ({"repair": False}, ON, True), ({"repair": True}, OFF, False)],
)  # fmt: skip
def test_who_decides(monkeypatch: pytest.MonkeyPatch, ours: Any, fields: Any, is_mended: bool) -> None:
    monkeypatch.setattr(Server, "settings", Settings(**ours))
    given, found = prepared(chat(**fields))
    assert (found.history_calls, found.exact_arguments) == (0, is_mended)
    assert given["messages"][0]["content"] == ("hi" if is_mended else USER["content"])
    assert given["default_template_content_format"] == ("string" if is_mended else "auto")


def test_the_operators_content_format_and_images_are_left() -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    assert prepared(chat(), "openai")[0]["default_template_content_format"] == "openai"
    given, _ = prepared(chat(USER, image))
    assert given["default_template_content_format"] == "auto"
    assert given["messages"][1]["content"][0]["type"] == "image_url"


def test_the_generation_prompt_of_chats_only() -> None:
    for request, wanted in (
        (chat(add_generation_prompt=False), True),
        (chat(add_generation_prompt=False, **OFF), False),
        (chat(add_generation_prompt=False, continue_final_message=True), False),
        (TokenizeChatRequest(messages=[USER], add_generation_prompt=False), False),
    ):
        prepared(request)
        assert request.add_generation_prompt is wanted


@pytest.mark.parametrize("kind", [ChatCompletionRequest, TokenizeChatRequest])
def test_a_partial_message_is_continued(kind: Any) -> None:
    last = {"role": "assistant", "content": "So", "partial": True}
    request = kind(model="k", messages=[USER, last])
    prepared(request)
    assert (request.continue_final_message, request.add_generation_prompt) == (True, False)
    off = chat(USER, last, **OFF)
    prepared(off)
    assert not off.continue_final_message


def test_what_is_lazy_is_read_and_reasoning_has_vllms_name() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asked = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]}
    given, found = prepared(TokenizeChatRequest(messages=[USER, asked]))
    assert found.history_calls == 1
    assert given["messages"][1]["reasoning"] == "hm"
    assert given["messages"][1]["tool_calls"][0]["id"] == "functions.f:0"


WRITTEN = ['{"a":1}', '{ "a" : "<|im\\u005fend|>" }', '{"a": "\\ud800"}', "[1]", "{cut off", "[" * 100_000, "9" * 5000]


def asking(arguments: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [
        {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": arguments}}]}  # fmt: skip


def postprocess_messages() -> Any:
    (target,) = (row.target for row in rows() if row.target.endswith(":_postprocess_messages"))
    return getattr(*owner_of(target))


def after_vllm(messages: list[Any]) -> Any:
    """The arguments as vLLM hands them to the template."""
    copied = copy.deepcopy(messages)
    postprocess_messages()(copied)
    return copied[-1]["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize("written", WRITTEN, ids=lambda written: written[:20])
def test_arguments_stay_as_they_were_written(written: str) -> None:
    """vLLM's ``_postprocess_messages`` would read them, and write them anew."""
    request = chat(asking(written))
    given, found = prepared(request)
    with found.rendering(request):
        assert after_vllm(given["messages"]) == written


@pytest.mark.parametrize("written", WRITTEN, ids=lambda written: written[:20])
def test_templates_that_take_objects_get_objects(written: str) -> None:
    given, found = prepared(chat(asking(written)), template="{{ arguments | tojson }}")
    assert not found.exact_arguments
    read = after_vllm(given["messages"])
    assert isinstance(read, dict)
    assert "<|im_end|>" not in str(read)
    assert ("im_end" in str(read)) == ("005f" in written)
    assert json.dumps(read, ensure_ascii=False).encode()


def test_vllm_reads_arguments_where_it_did() -> None:
    """Else what is replaced is no longer what turns text into objects."""
    assert after_vllm([asking('{"a":1}')]) == {"a": 1}
    request = chat(asking('{"a":1}'))
    given, found = prepared(request)
    with found.rendering(request):
        pass
    assert after_vllm(given["messages"]) == {"a": 1}  # outside of the request's rendering
    home = sys.modules[postprocess_messages().__module__]
    assert "_postprocess_messages" in home.parse_chat_messages_async.__code__.co_names


def test_errors_are_vllms() -> None:
    with pytest.raises(VLLMValidationError, match=r"messages\[0\]\.content: has a part of an unknown form") as refused:
        prepared(chat({"role": "user", "content": [{"type": "smell"}]}))
    assert refused.value.parameter == "messages[0].content"
    with pytest.raises(VLLMValidationError, match=r"vllm_xargs\.constrained_k2_repair"):
        prepared(chat(vllm_xargs={"constrained_k2_repair": ["off"]}))
