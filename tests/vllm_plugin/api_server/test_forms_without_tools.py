"""Requests with a form of their answer and without tools: constrained and read as beside tools."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.exceptions import VLLMValidationError

from constrained_k2 import Compiler, Vocabulary
from constrained_k2.request.tools import DEFAULT_LIMITS
from constrained_k2.vllm_plugin.api_server.admission import check_params
from tests.parsing.transcripts import ids_of_text
from tests.vllm_plugin.parsers import Composed, chat, responses, spec_of

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NO_VALUE = {"type": "string", "minLength": 2, "maxLength": 1}


def form(schema: Any = SCHEMA, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **fields}}


FORM = form(strict=True)


def asked_of_chat() -> Any:
    return chat(tools=None, response_format=FORM)


def asked_of_responses() -> Any:
    return responses(text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}})


def asked_of_messages() -> Any:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}],
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}  # fmt: skip
    return AnthropicServingMessages.to_chat_completion_request(AnthropicMessagesRequest.model_validate(body))


@pytest.mark.parametrize("asked", [asked_of_chat, asked_of_responses, asked_of_messages])
def test_the_form_is_the_constraint(asked: Any, composed: Composed) -> None:
    request = composed.adjusted(asked())
    spec = spec_of(request)
    assert (spec.tools, spec.choice, spec.max_calls) == ((), "none", 0)
    assert spec.thinking is (composed.thinks)
    assert spec.answer is not None and json.loads(spec.answer.text) == SCHEMA
    assert spec.answer.strict is (None if asked is asked_of_messages else True)
    params = request.to_sampling_params(10, {})
    assert params.structured_outputs is None
    assert check_params(params, first=True) is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
        {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
        {"response_format": FORM, "use_beam_search": True},
        {"response_format": FORM, "vllm_xargs": {"constrained_k2": "off"}},
        {"response_format": form(NO_VALUE), "vllm_xargs": {"constrained_k2_diagnostics": "off"}},
        {"structured_outputs": {"regex": "("}},  # refused later, by vLLM
        {"structured_outputs": {"regex": "a" * (DEFAULT_LIMITS.tools_bytes + 1)}},
        {"structured_outputs": {"regex": "a+"}, "vllm_xargs": {"constrained_k2": "xgrammar"}},
    ],
)
def test_what_stays_vllms(fields: Any, composed: Composed) -> None:
    given = chat(tools=None, **fields)
    expected = given.extract_structured_outputs()
    request = composed.adjusted(given)
    assert not (request.vllm_xargs or {}).get("constrained_k2")
    assert request.extract_structured_outputs() == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": form(NO_VALUE, strict=True)}, "response_format"),
        ({"response_format": FORM, "vllm_xargs": {"constrained_k2": "yes"}}, "vllm_xargs.constrained_k2"),
    ],
)
def test_what_is_refused(fields: Any, message: str, composed: Composed) -> None:
    with pytest.raises(VLLMValidationError, match=message):
        composed.chat(tools=None, **fields)


@pytest.mark.parametrize("reasoning", ["", "Hm"])
def test_the_answer_is_content(reasoning: str, composed: Composed, vocabulary: Vocabulary) -> None:
    """With or without reasoning before it, which vLLM's reasoning parser cannot tell."""
    request = composed.adjusted(asked_of_chat())
    markers = vocabulary.format
    thought = [markers.think_begin, *vocabulary.encode(reasoning), markers.think_end] if reasoning else []
    ids = [*thought, *vocabulary.encode('{"a": 1}'), markers.turn_end]
    text = vocabulary.decode(ids[:-1])
    assert composed.whole(request, ids, text) == (reasoning, '{"a": 1}', [])
    assert composed.stream(request, composed.pieces(ids, 1, vocabulary))[0] == (reasoning, '{"a": 1}', [])


def test_kimi_k3(k3_model: Path, k3_vocabulary: Vocabulary) -> None:
    """Its answer stands between tags."""
    composed = Composed(AutoTokenizer.from_pretrained(k3_model, trust_remote_code=True), "kimi_k3")
    request = composed.adjusted(asked_of_chat())
    matcher = Compiler(k3_vocabulary).compile(spec_of(request)).matcher(in_reasoning=True)
    begun, end = "Hm<|close|>think<|sep|><|open|>response<|sep|>", "<|close|>response<|sep|>"
    good, bad = (ids_of_text(f"{begun}{answer}{end}", k3_vocabulary) for answer in ('{"a":1}', '{"a":"<|sep|>"}'))
    assert matcher.validate_tokens(good) == good
    assert len(matcher.validate_tokens(bad)) < len(bad)
    prompt = ids_of_text("<|open|>think<|sep|>", k3_vocabulary)
    assert composed.whole(request, good, k3_vocabulary.decode(good), prompt) == ("Hm", '{"a":1}', [])
