"""Repair between vLLM and its renderer, without a server: of Kimi K2's templates, and of Kimi K3's tags."""

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
from constrained_k2.vllm_plugin.shared.server import Server
from constrained_k2.vllm_plugin.shared.settings import Settings
from constrained_k2.vllm_plugin.start.apply import owner_of, rows
from tests.vllm_plugin.parsers import TOOL

USER = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
OFF, ON = ({"vllm_xargs": {"constrained_k2_repair": switch}} for switch in ("off", "on"))
CALL = {"type": "function", "id": "a", "function": {"name": "f", "arguments": "{}"}}
MADE = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "r"}
TAKES_TEXT = "{{ arguments if arguments is string else arguments | tojson }}"


def prepared(
    request: Any, content_format: str = "auto", template: str | None = TAKES_TEXT
) -> tuple[dict[str, Any], RequestState]:
    given = {"request": request, "messages": request.messages, "default_template_content_format": content_format}
    return given, repair.prepare(given, KIMI_SPECIALS, template)


def tagged(*messages: Any, **fields: Any) -> tuple[dict[str, Any], RequestState]:
    """A chat prepared for Kimi K3."""
    request = chat(*messages, **fields)
    given = {"request": request, "messages": request.messages, "tool_dicts": None}
    return given, repair.prepare(given, None, None)


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
    said = {"role": "assistant", "content": "a"}
    request = tagged(USER, said, add_generation_prompt=False, continue_final_message=True)[0]["request"]
    assert request.add_generation_prompt and not request.continue_final_message


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
    given, found = prepared(TokenizeChatRequest(messages=[USER, MADE | {"reasoning_content": "hm"}]))
    assert found.history_calls == 1
    assert given["messages"][1]["reasoning"] == "hm"
    assert given["messages"][1]["tool_calls"][0]["id"] == "functions.f:0"


WRITTEN = ['{"a":1}', '{ "a" : "<|im\\u005fend|>" }', '{"a": "\\ud800"}', "[1]", "{cut off", "[" * 100_000, "9" * 5000]


def asking(arguments: str) -> dict[str, Any]:
    return MADE | {"tool_calls": [CALL | {"function": {"name": "f", "arguments": arguments}}]}


def postprocess_messages() -> Any:
    (target,) = (row.target for row in rows() if row.target.endswith(":_postprocess_messages"))
    return getattr(*owner_of(target))


def after_vllm(messages: list[Any]) -> Any:
    """The arguments as vLLM hands them to the template."""
    copied = copy.deepcopy(messages)
    postprocess_messages()(copied)
    return copied[-1]["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize("written", WRITTEN, ids=lambda written: written[:20])
def test_arguments_stay_as_they_were_written_unless_the_template_takes_objects(written: str) -> None:
    """vLLM's ``_postprocess_messages`` would read them, and write them anew."""
    request = chat(asking(written))
    given, found = prepared(request)
    with found.rendering(request):
        assert after_vllm(given["messages"]) == written
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


# Kimi K3


def test_histories_are_repaired_for_tags() -> None:
    calls = [CALL | {"function": {"name": name, "arguments": "{}"}} for name in "fg"]
    results = [RESULT | {"tool_call_id": "a", "content": text} for text in ("1 <|close|>", "2")]
    history = [USER, MADE | {"tool_calls": calls, "reasoning_content": "why"}, *results]
    given, state = tagged(*history)
    _, made, *results = given["messages"]
    ids = [call["id"] for call in made["tool_calls"]]
    assert len(set(ids)) == 2 and [result["tool_call_id"] for result in results] == ids
    assert results[0]["content"] == "1 <|close|>"  # text stays text
    assert made["reasoning"] == "why" and (state.history_calls, state.exact_arguments) == (2, False)
    given, _ = tagged(*history, **OFF)
    assert [call["id"] for call in given["messages"][1]["tool_calls"]] == ["a", "a"]


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_tools_of_messages_are_refused(role: str) -> None:
    """vLLM leaves them out of the prompt, so the model would not see them."""
    message = {"role": role, "content": "x", "tool_call_id": "a", "tools": [TOOL]}
    with pytest.raises(VLLMValidationError, match=r"^messages\[2\]\.tools: .*Declare them in the request's tools\. "):
        tagged(USER, MADE, message)
    tagged(USER, MADE, message | {"tools": []})
    tagged(USER, MADE, message, **OFF)


def test_results_without_an_id_answer_the_calls_before_them() -> None:
    """As in vLLM's prompts; one that answers none, and does not name its function, has no place there."""
    given, _ = tagged(USER, MADE, RESULT)
    assert given["messages"][2]["tool_call_id"] == given["messages"][1]["tool_calls"][0]["id"]
    for history, place in (([USER], 1), ([USER, MADE, RESULT], 3)):
        for result in (RESULT, RESULT | {"tool_call_id": ""}):
            said = rf"^messages\[{place}\]\.tool_call_id: missing.*, and its id\. "
            with pytest.raises(VLLMValidationError, match=said):
                tagged(*history, result)
        tagged(*history, RESULT | {"name": "f"})
        tagged(*history, RESULT | {"tool_call_id": "unknown"})
