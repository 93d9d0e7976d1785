"""Requests with a form of their answer, with tools and without: constrained, read, left to vLLM, and refused."""

import json
from typing import Any

import pytest
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.exceptions import VLLMValidationError

from constrained_k2 import Vocabulary
from constrained_k2.request.tools import DEFAULT_LIMITS
from constrained_k2.vllm_plugin.api_server.admission import check_params
from tests.vllm_plugin.parsers import Composed, chat, responses, spec_of

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NO_VALUE = {"type": "string", "minLength": 2, "maxLength": 1}
REGEX = {"structured_outputs": {"regex": "a+"}}
BLANKS = {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}
OFF = {"vllm_xargs": {"constrained_k2": "off"}}
NAMED = {"name": "f", "parameters": {"type": "object"}}


def form(schema: Any = SCHEMA, **fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **fields}}}


FORM = form(strict=True)


@pytest.mark.parametrize("fields", [{"tools": None}, {"tool_choice": "none"}, {"tool_choice": "auto"}], ids=str)
@pytest.mark.parametrize(
    ("asked", "text"), [(REGEX, "a+"), ({"response_format": {"type": "json_object"}}, '{"type":"object"}')]
)
def test_the_form_is_part_of_the_constraint(composed: Composed, asked: Any, text: str, fields: Any) -> None:
    given = chat(**asked, **fields)
    assert given.extract_structured_outputs() is not None
    request = composed.adjusted(given)
    spec = spec_of(request)
    choice = fields.get("tool_choice", "none")
    assert (len(spec.tools), spec.choice, spec.max_calls) == (
        "tools" not in fields,
        choice,
        None if choice == "auto" else 0,
    )
    assert spec.thinking is composed.thinks
    assert spec.answer is not None and spec.answer.text == text
    params = request.to_sampling_params(10, {})
    assert params.structured_outputs is None  # vLLM would constrain calls by it too
    assert check_params(params, first=True) is not None


@pytest.mark.parametrize("with_tool", [False, True], ids=["no tools", "tools"])
@pytest.mark.parametrize("endpoint", ["chat", "responses", "messages"])
def test_a_schema_is_part_of_the_constraint_on_each_endpoint(
    composed: Composed, endpoint: str, with_tool: bool
) -> None:
    if endpoint == "chat":
        given = chat(**FORM, **({} if with_tool else {"tools": None}))
    elif endpoint == "responses":
        tools = [{"type": "function", **NAMED}] if with_tool else []
        format_ = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
        given = responses(text={"format": format_}, tools=tools)
    else:
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}],
                "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
                "tools": [{"name": "f", "input_schema": {"type": "object"}}] if with_tool else None}  # fmt: skip
        given = AnthropicServingMessages.to_chat_completion_request(AnthropicMessagesRequest.model_validate(body))
    request = composed.adjusted(given)
    spec = spec_of(request)
    assert (len(spec.tools), spec.max_calls) == (1, None) if with_tool else (0, 0)
    assert spec.answer is not None and spec.answer.kind == "json" and json.loads(spec.answer.text) == SCHEMA
    assert spec.answer.strict is (None if endpoint == "messages" else True)
    assert request.to_sampling_params(10, {}).structured_outputs is None
    if endpoint == "responses":
        assert request.text.format.schema_ == SCHEMA  # the answer repeats the field to the client


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": None, "response_format": {"type": "text"}},
        {"tools": None} | BLANKS,
        {"tools": None, "response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
        {"tools": None, "use_beam_search": True} | FORM,
        {"tools": None} | FORM | OFF,
        {"tools": None, "vllm_xargs": {"constrained_k2_diagnostics": "off"}} | form(NO_VALUE),
        {"tools": None, "structured_outputs": {"regex": "("}},  # refused later, by vLLM
        {"tools": None, "structured_outputs": {"regex": "a" * (DEFAULT_LIMITS.tools_bytes + 1)}},
        {"tools": None, "vllm_xargs": {"constrained_k2": "xgrammar"}} | REGEX,
        REGEX | OFF,
        {"tool_choice": "none"} | BLANKS,
    ],
)  # fmt: skip
def test_what_stays_vllms(fields: Any, composed: Composed) -> None:
    given = chat(**fields)
    expected = given.extract_structured_outputs()
    request = composed.adjusted(given)
    if "tool_choice" in fields:  # its calls are constrained without the form
        assert spec_of(request).answer is None
    else:
        assert (request.vllm_xargs or {}).get("constrained_k2") in (None, "off")
    assert request.extract_structured_outputs() == expected


def test_a_required_call_leaves_no_form(composed: Composed) -> None:
    request = composed.chat(response_format={"type": "json_object"}, tool_choice="required")
    assert spec_of(request).answer is None
    assert request.to_sampling_params(10, {}).structured_outputs is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": None} | form(NO_VALUE, strict=True), "response_format"),
        ({"tools": None, "vllm_xargs": {"constrained_k2": "yes"}} | FORM, "vllm_xargs.constrained_k2"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format.json_schema.schema"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ],
)  # fmt: skip
def test_what_is_refused(fields: Any, message: str, composed: Composed) -> None:
    with pytest.raises(VLLMValidationError, match=message):
        composed.chat(**fields)


@pytest.mark.parametrize("reasoning", ["", "Hm"])
def test_the_answer_is_content(reasoning: str, composed: Composed, vocabulary: Vocabulary) -> None:
    """With or without reasoning before it, which vLLM's reasoning parser cannot tell."""
    request = composed.chat(tools=None, **FORM)
    markers = vocabulary.format
    thought = [markers.think_begin, *vocabulary.encode(reasoning), markers.think_end] if reasoning else []
    ids = [*thought, *vocabulary.encode('{"a": 1}'), markers.turn_end]
    text = vocabulary.decode(ids[:-1])
    assert composed.whole(request, ids, text) == (reasoning, '{"a": 1}', [])
    assert composed.stream(request, composed.pieces(ids, 1, vocabulary))[0] == (reasoning, '{"a": 1}', [])
