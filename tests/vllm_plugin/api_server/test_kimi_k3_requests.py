"""Kimi K3's requests and prompts in vLLM's processes, without a server."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from transformers import AutoTokenizer
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams

from constrained_k2 import ToolCall, Vocabulary
from constrained_k2.formats import FORMATS
from constrained_k2.prompts.xtml import render_turn
from constrained_k2.vllm_plugin.api_server import repair
from constrained_k2.vllm_plugin.api_server.admission import Admission
from constrained_k2.vllm_plugin.api_server.middleware import rewritten
from constrained_k2.vllm_plugin.shared.byte_compiler import byte_compiler
from constrained_k2.vllm_plugin.shared.matcher_factory import PROMPT_END
from constrained_k2.vllm_plugin.shared.openings import bad_words, count_calls
from constrained_k2.vllm_plugin.shared.settings import Settings
from constrained_k2.vllm_plugin.shared.token_limits import token_limits_in
from constrained_k2.vllm_plugin.shared.vocabularies import Served, vocabulary_of_model
from tests.kit.tools import tool
from tests.vllm_plugin.parsers import TOOL, Composed, spec_of
from tests.vllm_plugin.served import asking

CALLS = [ToolCall("f", 1, '{"a": "<|open|>call tool="}'), ToolCall("call", 2, "{}")]
USER = {"role": "user", "content": "hi"}


def spelled(vocabulary: Vocabulary, ids: list[int]) -> list[int]:
    """The tokens with ordinary ones split into single bytes."""
    found: list[int] = []
    for token_id in ids:
        parts = [vocabulary.find(bytes((byte,))) for byte in vocabulary.ordinary_bytes(token_id)]
        found += [part for part in parts if part is not None] or [token_id]
    return found


def test_calls_are_counted_in_any_tokens(k3_vocabulary: Vocabulary, vocabulary: Vocabulary) -> None:
    ids = render_turn(CALLS, k3_vocabulary, response="<|open|>call tool=", reasoning="x")
    assert count_calls(ids, k3_vocabulary) == count_calls(spelled(k3_vocabulary, ids), k3_vocabulary) == 2
    cut = len(ids) - ids[::-1].index(k3_vocabulary.format.call_begin)  # behind the last opening: of the call `call`
    assert count_calls(ids[:cut], k3_vocabulary) == 1
    assert count_calls([vocabulary.format.call_begin, 5, vocabulary.format.call_begin], vocabulary) == 2


def test_bad_words_forbid_sections_and_calls_alone(k3_vocabulary: Vocabulary, vocabulary: Vocabulary) -> None:
    """Each call begins with one of them, in any tokens; a turn without calls holds none."""
    words = bad_words(k3_vocabulary)

    def holds(ids: list[int]) -> int:
        return sum(ids[at : at + len(word)] == word for word in words for at in range(len(ids)))

    for change in (list, lambda ids: spelled(k3_vocabulary, ids)):
        assert holds(change(render_turn(CALLS, k3_vocabulary, reasoning="x"))) == 1 + len(CALLS)
        assert not holds(change(render_turn([], k3_vocabulary, response="tools call", reasoning="tools")))
    markers = vocabulary.format
    assert bad_words(vocabulary) == [[markers.section_begin], [markers.call_begin]]


def test_the_end_of_a_prompt_shows_whether_it_opens_reasoning(k3_vocabulary: Vocabulary) -> None:
    for markers in FORMATS:
        assert sum(1 if isinstance(piece, str) else len(piece) for piece in markers.reasoning_opening) <= PROMPT_END
    markers = k3_vocabulary.format
    think = spelled(k3_vocabulary, k3_vocabulary.encode("think"))
    ids = [5] * 9 + [markers.call_begin, *think, markers.argument_begin]
    assert k3_vocabulary.opens_reasoning(ids[-PROMPT_END:])


def test_schemas_are_compiled_in_the_format_of_the_served_model(k3_model: Path) -> None:
    before = byte_compiler(Settings())
    config = SimpleNamespace(
        tokenizer=str(k3_model), get_vocab_size=lambda: None, tokenizer_revision=None, trust_remote_code=True
    )
    read = vocabulary_of_model(config)
    assert read.format.argument_encoding == "xtml"
    assert byte_compiler(Settings()).vocabulary.format.argument_encoding == "xtml"
    assert before is not byte_compiler(Settings())


def prepared(request: Any) -> tuple[dict[str, Any], Any]:
    given = {"request": request, "messages": request.messages, "tool_dicts": None}
    return given, repair.prepare_tags(given)


def chat(*messages: Any, **fields: Any) -> Any:
    return ChatCompletionRequest(**rewritten({"model": "k", "messages": list(messages)} | fields, "messages"))


def test_histories_are_repaired_for_tags() -> None:
    calls = [{"id": "x", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in "fg"]
    history = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "why"},
        {"role": "tool", "tool_call_id": "x", "content": "1 <|close|>"},
        {"role": "tool", "tool_call_id": "x", "content": "2"},
    ]
    given, state = prepared(chat(*history))
    _, made, *results = given["messages"]
    ids = [call["id"] for call in made["tool_calls"]]
    assert len(set(ids)) == 2 and [result["tool_call_id"] for result in results] == ids
    assert results[0]["content"] == "1 <|close|>"  # text stays text
    assert made["reasoning"] == "why" and (state.history_calls, state.exact_arguments) == (2, False)
    given, state = prepared(chat(*history, vllm_xargs={"constrained_k2_repair": "off"}))
    assert [call["id"] for call in given["messages"][1]["tool_calls"]] == ["x", "x"]


def test_a_chat_gets_a_generation_prompt() -> None:
    said = {"role": "assistant", "content": "a"}
    request = chat(USER, said, add_generation_prompt=False, continue_final_message=True)
    prepared(request)
    assert request.add_generation_prompt and not request.continue_final_message


def test_a_message_without_a_meaning_is_refused() -> None:
    request = chat(USER)
    request.messages = [USER, {"role": "critic", "content": "x"}]
    with pytest.raises(VLLMValidationError, match=r"messages\[1\]\.role"):
        prepared(request)


CALL = {"type": "function", "id": "a", "function": {"name": "f", "arguments": "{}"}}
MADE = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "r"}


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_tools_of_messages_are_refused(role: str) -> None:
    """vLLM leaves them out of the prompt, so the model would not see them."""
    message = {"role": role, "content": "x", "tool_call_id": "a", "tools": [TOOL]}
    with pytest.raises(VLLMValidationError, match=r"^messages\[2\]\.tools: .*Declare them in the request's tools\. "):
        prepared(chat(USER, MADE, message))
    prepared(chat(USER, MADE, message | {"tools": []}))
    prepared(chat(USER, MADE, message, vllm_xargs={"constrained_k2_repair": "off"}))


def test_results_without_an_id_answer_the_calls_before_them() -> None:
    """As in vLLM's prompts; one that answers none, and does not name its function, has no place there."""
    given, _ = prepared(chat(USER, MADE, RESULT))
    assert given["messages"][2]["tool_call_id"] == given["messages"][1]["tool_calls"][0]["id"]
    for history, place in (([USER, RESULT], 1), ([USER, MADE, RESULT, RESULT], 3)):
        for result in (RESULT, RESULT | {"tool_call_id": ""}):
            said = rf"^messages\[{place}\]\.tool_call_id: missing.*, and its id\. "
            with pytest.raises(VLLMValidationError, match=said):
                prepared(chat(*history[:-1], result))
        prepared(chat(*history[:-1], RESULT | {"name": "f"}))
        prepared(chat(*history[:-1], RESULT | {"tool_call_id": "unknown"}))


def test_names_of_tools(k3_model: Path) -> None:
    """vLLM refuses a tool without a name, this package one with an empty name; several may have one name."""
    with pytest.raises(ValidationError, match=r"function\.name"):
        chat(USER, tools=[{"type": "function", "function": {}}])
    composed = Composed(AutoTokenizer.from_pretrained(k3_model, trust_remote_code=True))
    with pytest.raises(VLLMValidationError, match=r"tools\[0\]\.function\.name: the name '' is empty"):
        composed.chat(tools=[tool("")])
    (both,) = spec_of(composed.chat(tools=[TOOL, tool("f", {"required": ["a"]})])).tools
    assert [branch.get("required") for branch in both.parameters["anyOf"]] == [None, ["a"]]


@pytest.mark.parametrize("route", ["structured_output", "logits_processor"])
@pytest.mark.parametrize("wire_format", FORMATS, ids=lambda each: each.name)
def test_limits_beside_calls_that_are_forbidden(
    k3_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, route: str, wire_format: Any
) -> None:
    """Within a joint of several tokens the masks allow few tokens: vLLM's own limits might forbid them all."""
    monkeypatch.setattr(Served, "wire_format", wire_format)
    spec = {"tools": [TOOL], "tool_choice": "none"}
    admission = Admission(k3_vocabulary if route == "structured_output" else None)
    for regex in (None, StructuredOutputsParams(regex="a")):  # these are left to vLLM, with its limits
        params = asking(spec, thinking_token_budget=3, allowed_token_ids=[5], structured_outputs=regex)
        call = {"params": params}
        admitted = admission.check(call)
        assert admitted is not None
        request = SimpleNamespace(sampling_params=call["params"])
        admission.constrain(request, admitted)
        sent, is_taken = request.sampling_params, wire_format.has_long_joints and regex is None
        assert (sent.thinking_token_budget is None) == (sent.allowed_token_ids is None) == is_taken
        limits = token_limits_in(sent.extra_args)
        assert (limits.thinking_token_budget, limits.allowed_token_ids) == ((3, (5,)) if is_taken else (None, None))
