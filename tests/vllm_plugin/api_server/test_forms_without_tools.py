"""Requests with a form of their answer and without tools: constrained and read as beside tools."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from transformers import AutoTokenizer
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMValidationError
from vllm.parser import ParserManager

from constrained_k2 import Compiler, ToolCallSpec, Vocabulary
from constrained_k2.request.tools import DEFAULT_LIMITS
from constrained_k2.vllm_plugin.api_server.admission import check_params
from tests.parsing.transcripts import ids_of_text
from tests.vllm_plugin.parsers import adjusted, chat, make
from tests.vllm_plugin.patched import patch_vllm

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
EMPTY = {"type": "string", "minLength": 2, "maxLength": 1}  # no value satisfies it
LOOSE = {"type": "json_schema", "json_schema": {"name": "x", "schema": EMPTY}}
STRICT = {"type": "json_schema", "json_schema": {"name": "x", "schema": EMPTY, "strict": True}}
REGEX = {"structured_outputs": {"regex": "a+"}}


def asked_of_chat() -> Any:
    return chat(tools=None, response_format=FORM)


def asked_of_responses() -> Any:
    form = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
    return ResponsesRequest.model_validate({"input": "x", "model": "m", "text": {"format": form}})


def asked_of_messages() -> Any:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}],
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}  # fmt: skip
    return AnthropicServingMessages.to_chat_completion_request(AnthropicMessagesRequest.model_validate(body))


def spec_of(request: Any) -> ToolCallSpec:
    return ToolCallSpec.from_json(request.vllm_xargs["constrained_k2"])


@pytest.mark.parametrize("asked", [asked_of_chat, asked_of_responses, asked_of_messages])
def test_the_form_is_the_constraint(asked: Any, parser_class: Any, tokenizer: Any) -> None:
    request = adjusted(parser_class, tokenizer, asked())
    spec = spec_of(request)
    assert (spec.tools, spec.choice, spec.max_calls) == ((), "none", 0)
    assert spec.thinking is (parser_class.reasoning_parser_cls is not None)
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
        {"response_format": LOOSE, "vllm_xargs": {"constrained_k2_diagnostics": "off"}},
        {"structured_outputs": {"regex": "("}},  # refused later, by vLLM
        {"structured_outputs": {"regex": "a" * (DEFAULT_LIMITS.tools_bytes + 1)}},
        {"structured_outputs": {"regex": "a+"}, "vllm_xargs": {"constrained_k2": "xgrammar"}},
    ],
)
def test_what_stays_vllms(fields: Any, parser_class: Any, tokenizer: Any) -> None:
    given = chat(tools=None, **fields)
    expected = given.extract_structured_outputs()
    request = adjusted(parser_class, tokenizer, given)
    assert not (request.vllm_xargs or {}).get("constrained_k2")
    assert request.extract_structured_outputs() == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": STRICT}, "response_format"),
        ({"response_format": FORM, "vllm_xargs": {"constrained_k2": "yes"}}, "vllm_xargs.constrained_k2"),
    ],
)
def test_what_is_refused(fields: Any, message: str, parser_class: Any, tokenizer: Any) -> None:
    with pytest.raises(VLLMValidationError, match=message):
        adjusted(parser_class, tokenizer, chat(tools=None, **fields))


@pytest.mark.parametrize("reasoning", ["", "Hm"])
def test_the_answer_is_content(reasoning: str, parser_class: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
    """With or without reasoning before it, which vLLM's reasoning parser cannot tell."""
    request = adjusted(parser_class, tokenizer, asked_of_chat())
    markers = vocabulary.format
    thought = [markers.think_begin, *vocabulary.encode(reasoning), markers.think_end] if reasoning else []
    ids = [*thought, *vocabulary.encode('{"a": 1}'), markers.turn_end]
    text = vocabulary.decode(ids[:-1])
    whole = make(parser_class, tokenizer, request).parse(text, request, True, ids)
    assert whole == (reasoning or None, '{"a": 1}', None)
    parser = make(parser_class, tokenizer, request)
    deltas = [
        parser.parse_delta(vocabulary.decode([token]), [token], request, [1], finished=token == ids[-1])
        for token in ids
    ]
    shown = [delta for delta in deltas if delta is not None]
    assert "".join(delta.content or "" for delta in shown) == '{"a": 1}'
    assert "".join(delta.reasoning or "" for delta in shown) == reasoning


def test_kimi_k3(k3_model: Path, k3_vocabulary: Vocabulary) -> None:
    """Its answer stands between tags."""
    patch_vllm()
    tokenizer = AutoTokenizer.from_pretrained(k3_model, trust_remote_code=True)
    parser_class = ParserManager.get_parser(
        tool_parser_name="kimi_k2_constrained", reasoning_parser_name="kimi_k3", enable_auto_tools=True,
        tokenizer=tokenizer,
    )  # fmt: skip
    request = adjusted(parser_class, tokenizer, asked_of_chat())
    matcher = Compiler(k3_vocabulary).compile(spec_of(request)).matcher(in_reasoning=True)
    begun, end = "Hm<|close|>think<|sep|><|open|>response<|sep|>", "<|close|>response<|sep|>"
    good, bad = (ids_of_text(f"{begun}{answer}{end}", k3_vocabulary) for answer in ('{"a":1}', '{"a":"<|sep|>"}'))
    assert matcher.validate_tokens(good) == good
    assert len(matcher.validate_tokens(bad)) < len(bad)
    parser = make(parser_class, tokenizer, request)
    parser.set_prompt_token_ids(ids_of_text("<|open|>think<|sep|>", k3_vocabulary))
    assert parser.parse(k3_vocabulary.decode(good), request, True, good) == ("Hm", '{"a":1}', None)
