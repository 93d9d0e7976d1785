"""Requests lowered and refused inside vLLM's own composition of parsers, on vLLM's own request objects."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm import SamplingParams
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMValidationError

from constrained_k2 import InvalidRequest, Tool, ToolCallSpec
from constrained_k2.vllm_plugin.api_server import admission
from constrained_k2.vllm_plugin.shared import settings
from constrained_k2.vllm_plugin.shared.constraint import constraint_in
from tests.vllm_plugin.parsers import TOOL, adjusted, chat


def spec_of(request: Any) -> ToolCallSpec:
    return ToolCallSpec.from_json(request.vllm_xargs["constrained_k2"])


def test_a_chat_request_is_lowered(parser_class: Any, tokenizer: Any) -> None:
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [{"role": "assistant", "tool_calls": [call, call]}, {"role": "tool", "tool_call_id": "x", "content": "1"}]
    request = adjusted(parser_class, tokenizer, chat(messages=history, vllm_xargs={"other": 1}, tool_choice="required"))
    spec = spec_of(request)
    assert (spec.first_index, spec.choice, spec.parallel) == (2, "required", True)
    assert request.vllm_xargs["other"] == 1
    assert request.to_sampling_params(10, {}).extra_args["constrained_k2"] == spec.to_json()
    assert [message["role"] for message in request.messages] == ["assistant", "tool"]
    assert len(list(request.messages[0]["tool_calls"])) == 2  # lazy values were not used up


@pytest.mark.parametrize(
    ("fields", "choice", "max_calls"),
    [
        ({}, "auto", None),
        ({"tool_choice": "none"}, "none", 0),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "required", 1),
        ({"parallel_tool_calls": False}, "auto", 1),
    ],
)
def test_tool_choice(parser_class: Any, tokenizer: Any, fields: Any, choice: str, max_calls: int | None) -> None:
    spec = spec_of(adjusted(parser_class, tokenizer, chat(**fields)))
    assert (spec.choice, spec.max_calls) == (choice, max_calls)


def test_a_responses_request_is_lowered(parser_class: Any, tokenizer: Any) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    request = ResponsesRequest.model_validate({"input": "x", "model": "m", "tools": [tool], "tool_choice": "required"})
    assert spec_of(adjusted(parser_class, tokenizer, request)).choice == "required"


def test_thinking_is_allowed_where_the_model_thinks(parser_class: Any, tokenizer: Any) -> None:
    thinks = parser_class.reasoning_parser_cls is not None
    assert spec_of(adjusted(parser_class, tokenizer, chat())).thinking is thinks
    off = chat(chat_template_kwargs={"thinking": False})
    assert spec_of(adjusted(parser_class, tokenizer, off)).thinking is False


CALL = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = [
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "functions.f:0", "content": "1"},
]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": None},
        {"vllm_xargs": {"constrained_k2": "off"}},
        {"tools": None, "vllm_xargs": {"constrained_k2": "on", "other": 1}},
        {"tools": None, "vllm_xargs": {"constrained_k2": "llguidance"}},
        {"tools": None, "messages": CALLED, "vllm_xargs": {"constrained_k2": "off"}},
        {"tools": None, "messages": CALLED, "use_beam_search": True},
    ],
    ids=str,
)
def test_requests_that_are_not_constrained(parser_class: Any, tokenizer: Any, fields: Any) -> None:
    request = adjusted(parser_class, tokenizer, chat(**fields))
    assert (request.vllm_xargs or {}).get("constrained_k2") in (None, "off")
    assert admission.check_params(request.to_sampling_params(10, {})) is None


@pytest.mark.parametrize("fields", [{}, {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}], ids=str)
def test_without_tools_a_dialog_with_calls_is_as_with_none(parser_class: Any, tokenizer: Any, fields: Any) -> None:
    without = adjusted(parser_class, tokenizer, chat(tools=None, messages=CALLED, **fields))
    none = adjusted(parser_class, tokenizer, chat(tool_choice="none", messages=CALLED, **fields))
    given, expected = spec_of(without), spec_of(none)
    assert given.max_calls == expected.max_calls == 0
    assert given == replace(expected, tools=())
    params = without.to_sampling_params(10, {})
    assert (params.structured_outputs is None) is not fields
    assert admission.check_params(params, first=True) is not None


def test_a_server_that_does_not_constrain_serves_dialogs_without_tools(
    parser_class: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.Server, "constrains", False)
    request = adjusted(parser_class, tokenizer, chat(tools=None, messages=CALLED))
    assert not request.vllm_xargs


@pytest.mark.parametrize("value", ["yes", 1, None, {"type": "enabled"}], ids=str)
def test_a_template_takes_what_is_no_boolean_as_it_likes(parser_class: Any, tokenizer: Any, value: Any) -> None:
    thinks = parser_class.reasoning_parser_cls is not None
    for name in ("thinking", "enable_thinking"):
        assert spec_of(adjusted(parser_class, tokenizer, chat(chat_template_kwargs={name: value}))).thinking is thinks


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"not": {}}}}]},
            "no value satisfies",
        ),
        ({"vllm_xargs": {"constrained_k2": "{}"}}, r"vllm_xargs.constrained_k2"),
        ({"use_beam_search": True}, "use_beam_search"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ],
)
def test_requests_that_cannot_be_constrained(parser_class: Any, tokenizer: Any, fields: Any, message: str) -> None:
    with pytest.raises(VLLMValidationError, match=message):
        adjusted(parser_class, tokenizer, chat(**fields))


REGEX = {"structured_outputs": {"regex": "a+"}}
OBJECT = {"response_format": {"type": "json_object"}}


@pytest.mark.parametrize("choice", ["auto", "none"])
@pytest.mark.parametrize("fields", [REGEX, OBJECT], ids=["regex", "object"])
def test_the_form_of_an_answer_goes_into_the_constraint(
    parser_class: Any, tokenizer: Any, fields: Any, choice: str
) -> None:
    request = chat(**fields, tool_choice=choice)
    assert request.extract_structured_outputs() is not None
    spec = spec_of(adjusted(parser_class, tokenizer, request))
    assert spec.choice == choice
    assert spec.answer is not None
    assert spec.answer.text == ("a+" if fields is REGEX else '{"type":"object"}')
    assert request.to_sampling_params(10, {}).structured_outputs is None  # vLLM would constrain calls by it too


def test_a_required_call_leaves_no_form(parser_class: Any, tokenizer: Any) -> None:
    request = adjusted(parser_class, tokenizer, chat(**OBJECT, tool_choice="required"))
    assert spec_of(request).answer is None
    assert request.to_sampling_params(10, {}).structured_outputs is None


def test_a_form_that_only_vllm_knows_stays_vllms_where_no_tool_may_be_called(parser_class: Any, tokenizer: Any) -> None:
    request = chat(structured_outputs={"regex": "a", "whitespace_pattern": " "}, tool_choice="none")
    assert spec_of(adjusted(parser_class, tokenizer, request)).answer is None
    assert request.to_sampling_params(10, {}).structured_outputs.regex == "a"


@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["no tools", "tools"])
def test_the_form_stays_vllms_without_a_constraint(parser_class: Any, tokenizer: Any, tools: Any) -> None:
    request = chat(**REGEX, tools=tools, vllm_xargs={"constrained_k2": "off"})
    request = adjusted(parser_class, tokenizer, request)
    assert request.to_sampling_params(10, {}).structured_outputs.regex == "a+"


def test_a_responses_format_goes_into_the_constraint(parser_class: Any, tokenizer: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    body = {"input": "x", "model": "m", "tools": [tool], "text": {"format": form}}
    request = ResponsesRequest.model_validate(body)
    answer = spec_of(adjusted(parser_class, tokenizer, request)).answer
    assert answer is not None
    assert (answer.kind, answer.strict) == ("json", True)
    assert request.to_sampling_params(10, {}).structured_outputs is None
    assert request.text.format.schema_ == schema  # the answer repeats the field to the client


def config(*processors: str, **ours: Any) -> Any:
    """As much of vLLM's configuration as is read."""
    return SimpleNamespace(
        model_config=SimpleNamespace(logits_processors=list(processors), served_model_name="kimi-k2"),
        additional_config={"constrained_k2": ours} if ours else {},
    )


def test_a_server_without_the_processor_does_not_pretend(parser_class: Any, tokenizer: Any) -> None:
    settings.remember_server(config("other:Processor"), None)
    with pytest.raises(VLLMValidationError, match='"route": "structured_output"'):
        adjusted(parser_class, tokenizer, chat())
    spec = ToolCallSpec.from_openai({"tools": [TOOL]}).to_json()
    with pytest.raises(ValueError, match='"route": "structured_output"'):
        admission.check_params(SamplingParams(extra_args={"constrained_k2": spec}))
    adjusted(parser_class, tokenizer, chat(vllm_xargs={"constrained_k2": "off"}))
    settings.remember_server(config("constrained_k2.vllm_plugin:KimiK2LogitsProcessor"), "logits_processor")
    adjusted(parser_class, tokenizer, chat())


UNKEPT = {"type": "object", "minProperties": 70}


def tool_with(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": UNKEPT} | fields}


def test_a_strict_tool_is_kept_whole_or_refused(parser_class: Any, tokenizer: Any) -> None:
    adjusted(parser_class, tokenizer, chat(tools=[tool_with()]))
    adjusted(parser_class, tokenizer, chat(tools=[tool_with(strict=False)]))
    with pytest.raises(VLLMValidationError, match="#/minProperties: the tool is strict"):
        adjusted(parser_class, tokenizer, chat(tools=[tool_with(strict=True)]))


NOT_STRICT = tool_with(strict=False, parameters={"type": "object", "properties": {"a": {}}})
WITHOUT_GRAMMAR = tool_with(strict=False, name="g", parameters={"not": {}})


def level_of(request: Any) -> str:
    params = request.to_sampling_params(10, {})
    compiled = admission.check_params(params)
    assert compiled is not None
    in_the_engine = constraint_in(params.extra_args)
    assert in_the_engine is not None
    policy = settings.Server.settings.strict
    assert compiled.level("f") == policy.level(in_the_engine.tools[0].strict, in_the_engine.strict_false)
    return compiled.level("f")


def test_what_strict_false_means(parser_class: Any, tokenizer: Any) -> None:
    """By default what left out means; an operator's setting or a request's switch makes it any JSON object."""
    switch = {"vllm_xargs": {"constrained_k2_strict_false": "json_object"}}
    back = {"vllm_xargs": {"constrained_k2_strict_false": "best_effort"}}
    assert level_of(adjusted(parser_class, tokenizer, chat(tools=[NOT_STRICT]))) == "best_effort"
    assert level_of(adjusted(parser_class, tokenizer, chat(tools=[NOT_STRICT], **switch))) == "json_object"
    ours = "constrained_k2.vllm_plugin:KimiK2LogitsProcessor"
    settings.remember_server(config(ours, strict={"false": "json_object"}), "logits_processor")
    assert level_of(adjusted(parser_class, tokenizer, chat(tools=[NOT_STRICT]))) == "json_object"
    assert level_of(adjusted(parser_class, tokenizer, chat(tools=[NOT_STRICT], **back))) == "best_effort"
    with pytest.raises(InvalidRequest, match=r"strict\.false: unknown level 'strict'"):
        settings.remember_server(config(ours, strict={"false": "strict"}), "logits_processor")
    with pytest.raises(VLLMValidationError, match=r"vllm_xargs\.constrained_k2_strict_false: unknown level 'maybe'"):
        adjusted(parser_class, tokenizer, chat(vllm_xargs={"constrained_k2_strict_false": "maybe"}))


def test_strict_false_on_completions() -> None:
    spec = ToolCallSpec.from_openai({"tools": [NOT_STRICT]}).to_json()
    xargs = {"constrained_k2": spec, "constrained_k2_strict_false": "json_object"}
    request = CompletionRequest.model_validate({"prompt": "x", "model": "m", "vllm_xargs": xargs})
    assert level_of(request) == "json_object"


def test_the_engine_compiles_no_schema_that_admission_gave_up(
    parser_class: Any, tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    admission._warn_once.cache_clear()
    request = adjusted(parser_class, tokenizer, chat(tools=[NOT_STRICT, WITHOUT_GRAMMAR]))
    given = ToolCallSpec.from_openai({"tools": [NOT_STRICT, WITHOUT_GRAMMAR]})
    params = SamplingParams(extra_args={"constrained_k2": given.to_json()})
    admission.check_params(params)
    for extra_args in (request.vllm_xargs, params.extra_args):
        sent = constraint_in(extra_args)
        assert sent is not None
        assert sent.tools == (given.tools[0], Tool("g", strict=False))
    (line,) = (record.getMessage() for record in caplog.records if "'g': # (" in record.getMessage())
    assert line.endswith("any JSON object is allowed)")


def test_a_server_may_be_stricter_than_its_clients_or_less(parser_class: Any, tokenizer: Any) -> None:
    ours = "constrained_k2.vllm_plugin:KimiK2LogitsProcessor"
    settings.remember_server(config(ours, strict="strict"), "logits_processor")
    for strict in (True, None, False):
        with pytest.raises(VLLMValidationError, match="the tool is strict"):
            adjusted(parser_class, tokenizer, chat(tools=[tool_with(strict=strict)]))
    settings.remember_server(config(ours, strict={"max": "best_effort"}), "logits_processor")
    adjusted(parser_class, tokenizer, chat(tools=[tool_with(strict=True)]))
    for wrong in ("maybe", {"min": "strict", "max": "json_object"}, {"level": "strict"}):
        with pytest.raises(InvalidRequest):
            settings.remember_server(config(ours, strict=wrong), "logits_processor")
    with pytest.raises(InvalidRequest, match="additional_config"):
        settings.remember_server(config(ours, stricter="strict"), "logits_processor")


@pytest.mark.slow
def test_engines_that_the_server_offers(parser_class: Any, tokenizer: Any) -> None:
    asked = {"vllm_xargs": {"constrained_k2": "xgrammar"}}
    with pytest.raises(VLLMValidationError, match="does not offer 'xgrammar'.*additional-config"):
        adjusted(parser_class, tokenizer, chat(**asked))
    ours = "constrained_k2.vllm_plugin:KimiK2LogitsProcessor"
    settings.remember_server(config(ours, engines=["llguidance", "xgrammar"]), "logits_processor")
    assert spec_of(adjusted(parser_class, tokenizer, chat(**asked))).engine == "xgrammar"
    assert spec_of(adjusted(parser_class, tokenizer, chat())).engine is None
    for wrong in (["outlines"], [], "xgrammar"):
        with pytest.raises(InvalidRequest, match="engines"):
            settings.remember_server(config(ours, engines=wrong), "logits_processor")


OPEN = {"type": "object", "properties": {"a": {}}}


def test_undeclared_keys_by_the_setting_and_by_the_request(parser_class: Any, tokenizer: Any) -> None:
    field, ours = "constrained_k2_undeclared_keys", "constrained_k2.vllm_plugin:KimiK2LogitsProcessor"
    for setting in ("allow", "forbid"):
        settings.remember_server(config(ours, undeclared_keys=setting), "logits_processor")
        for asked, expected in ((None, setting), ("allow", "allow"), ("forbid", "forbid")):
            extra = {} if asked is None else {field: asked}
            request = adjusted(parser_class, tokenizer, chat(tools=[tool_with(parameters=OPEN)], vllm_xargs=extra))
            assert field not in request.vllm_xargs  # the constraint says it
            assert spec_of(request).undeclared_keys == asked
            params = SamplingParams(extra_args=request.vllm_xargs)
            compiled = admission.check_params(params)
            assert compiled is not None
            assert bool(compiled.coverage("f").narrowed) == (expected == "forbid")
    with pytest.raises(InvalidRequest, match="additional_config.constrained_k2.undeclared_keys"):
        settings.remember_server(config(ours, undeclared_keys="deny"), "logits_processor")


@pytest.mark.parametrize("value", ["deny", "", 1])
def test_an_unknown_rule_for_undeclared_keys(parser_class: Any, tokenizer: Any, value: Any) -> None:
    said = r"vllm_xargs.constrained_k2_undeclared_keys: must be 'allow' or 'forbid'"
    with pytest.raises(VLLMValidationError, match=said):
        adjusted(parser_class, tokenizer, chat(vllm_xargs={"constrained_k2_undeclared_keys": value}))


@pytest.mark.parametrize("parallel", [None, True, False])
def test_a_bound_of_calls_becomes_part_of_the_constraint(parser_class: Any, tokenizer: Any, parallel: Any) -> None:
    field = "constrained_k2_max_calls"
    request = adjusted(parser_class, tokenizer, chat(vllm_xargs={field: 3}, parallel_tool_calls=parallel))
    assert field not in request.vllm_xargs
    assert spec_of(request).max_calls == (1 if parallel is False else 3)


@pytest.mark.parametrize("value", [0, -2, "3", 1.5])
def test_a_bound_of_calls_that_is_none(parser_class: Any, tokenizer: Any, value: Any) -> None:
    said = "vllm_xargs.constrained_k2_max_calls: must be a whole number from 1"
    with pytest.raises(VLLMValidationError, match=said):
        adjusted(parser_class, tokenizer, chat(vllm_xargs={"constrained_k2_max_calls": value}))


@pytest.mark.parametrize("value", ["allow", "forbid"])
def test_repeated_calls_become_part_of_the_constraint(parser_class: Any, tokenizer: Any, value: Any) -> None:
    field = "constrained_k2_repeated_calls"
    request = adjusted(parser_class, tokenizer, chat(vllm_xargs={field: value}))
    assert field not in request.vllm_xargs and spec_of(request).repeated_calls == value
    said = f"vllm_xargs.{field}: must be 'allow' or 'forbid'"
    with pytest.raises(VLLMValidationError, match=said):
        adjusted(parser_class, tokenizer, chat(vllm_xargs={field: f"{value} them"}))


def test_what_is_not_kept_is_said_once(parser_class: Any, tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    admission._warn_once.cache_clear()
    request = chat(tools=[tool_with(name="said_once")])
    for _ in range(3):
        adjusted(parser_class, tokenizer, request.model_copy())
    said = [record.getMessage() for record in caplog.records if "said_once" in record.getMessage()]
    assert len(said) == 1
    assert "#/minProperties" in said[0]


def test_a_required_call_is_not_cut_by_stops(parser_class: Any, tokenizer: Any) -> None:
    request = adjusted(parser_class, tokenizer, chat(tool_choice="required", stop=['"'], stop_token_ids=[5]))
    assert (request.stop, request.stop_token_ids) == ([], [])
