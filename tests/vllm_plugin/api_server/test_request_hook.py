"""Requests lowered and refused inside vLLM's own composition of parsers, on vLLM's own request objects."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.exceptions import VLLMValidationError

from constrained_k2 import InvalidRequest, Tool, ToolCallSpec
from constrained_k2.vllm_plugin.api_server import admission
from constrained_k2.vllm_plugin.shared import settings
from constrained_k2.vllm_plugin.shared.constraint import constraint_in
from tests.kit.tools import tool
from tests.vllm_plugin.parsers import TOOL, Composed, chat, responses, spec_of
from tests.vllm_plugin.served import PROCESSOR, asking

FLAT = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CALL = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = [
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "functions.f:0", "content": "1"},
]
OFF = {"vllm_xargs": {"constrained_k2": "off"}}
REGEX = {"structured_outputs": {"regex": "a+"}}
OBJECT = {"response_format": {"type": "json_object"}}
UNKEPT = {"type": "object", "minProperties": 70}


def serve(*processors: str, route: Any = "logits_processor", **ours: Any) -> None:
    """Have a server of these flags and settings started."""
    model = SimpleNamespace(logits_processors=list(processors or [PROCESSOR]), served_model_name="kimi-k2")
    config = SimpleNamespace(model_config=model, additional_config={"constrained_k2": ours} if ours else {})
    settings.remember_server(config, route)


def xargs(**fields: Any) -> dict[str, Any]:
    return {"vllm_xargs": {f"constrained_k2_{name}": value for name, value in fields.items()}}


def refused(composed: Composed, message: str, **fields: Any) -> None:
    with pytest.raises(VLLMValidationError, match=message):
        composed.chat(**fields)


def test_a_chat_request_is_lowered(composed: Composed) -> None:
    history = [{"role": "assistant", "tool_calls": [CALL, CALL]}, {"role": "tool", "tool_call_id": "x", "content": "1"}]
    request = composed.chat(messages=history, vllm_xargs={"other": 1}, tool_choice="required")
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
def test_tool_choice(composed: Composed, fields: Any, choice: str, max_calls: int | None) -> None:
    spec = spec_of(composed.chat(**fields))
    assert (spec.choice, spec.max_calls) == (choice, max_calls)


def test_a_responses_request_is_lowered(composed: Composed) -> None:
    request = responses(tools=[FLAT | {"strict": True}], tool_choice="required")
    assert spec_of(composed.adjusted(request)).choice == "required"


def test_thinking_is_allowed_where_the_model_thinks(composed: Composed) -> None:
    assert spec_of(composed.chat()).thinking is composed.thinks
    assert spec_of(composed.chat(chat_template_kwargs={"thinking": False})).thinking is False
    for value in ("yes", 1, None, {"type": "enabled"}):  # only a boolean is more than the template's matter
        for name in ("thinking", "enable_thinking"):
            assert spec_of(composed.chat(chat_template_kwargs={name: value})).thinking is composed.thinks


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
def test_requests_that_are_not_constrained(composed: Composed, fields: Any) -> None:
    request = composed.chat(**fields)
    assert (request.vllm_xargs or {}).get("constrained_k2") in (None, "off")
    assert admission.check_params(request.to_sampling_params(10, {})) is None


@pytest.mark.parametrize("fields", [{}, {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}], ids=str)
def test_without_tools_a_dialog_with_calls_is_as_with_none(composed: Composed, fields: Any) -> None:
    without = composed.chat(tools=None, messages=CALLED, **fields)
    none = composed.chat(tool_choice="none", messages=CALLED, **fields)
    given, expected = spec_of(without), spec_of(none)
    assert given.max_calls == expected.max_calls == 0
    assert given == replace(expected, tools=())
    params = without.to_sampling_params(10, {})
    assert (params.structured_outputs is None) is not fields
    assert admission.check_params(params, first=True) is not None


def test_a_server_that_does_not_constrain_serves_dialogs_without_tools(
    composed: Composed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.Server, "constrains", False)
    request = composed.chat(tools=None, messages=CALLED)
    assert not request.vllm_xargs


SAID_OF_KEYS = "vllm_xargs.constrained_k2_undeclared_keys: must be 'allow' or 'forbid'"
SAID_OF_BOUNDS = "vllm_xargs.constrained_k2_max_calls: must be a whole number from 1"
SAID_OF_REPEATS = "vllm_xargs.constrained_k2_repeated_calls: must be 'allow' or 'forbid'"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [tool("f", {"not": {}}, strict=True)]}, "no value satisfies"),
        ({"vllm_xargs": {"constrained_k2": "{}"}}, "vllm_xargs.constrained_k2"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs structural_tag"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        (xargs(strict_false="maybe"), "vllm_xargs.constrained_k2_strict_false: unknown level 'maybe'"),
        *((xargs(undeclared_keys=value), SAID_OF_KEYS) for value in ("deny", "", 1)),
        *((xargs(max_calls=value), SAID_OF_BOUNDS) for value in (0, -2, "3", 1.5)),
        *((xargs(repeated_calls=value), SAID_OF_REPEATS) for value in ("allow them", "forbid them")),
    ],
)
def test_requests_that_cannot_be_constrained(composed: Composed, fields: Any, message: str) -> None:
    refused(composed, re.escape(message), **fields)


@pytest.mark.parametrize("choice", ["auto", "none"])
@pytest.mark.parametrize("fields", [REGEX, OBJECT], ids=["regex", "object"])
def test_the_form_of_an_answer_goes_into_the_constraint(composed: Composed, fields: Any, choice: str) -> None:
    request = chat(**fields, tool_choice=choice)
    assert request.extract_structured_outputs() is not None
    spec = spec_of(composed.adjusted(request))
    assert spec.choice == choice
    assert spec.answer is not None
    assert spec.answer.text == ("a+" if fields is REGEX else '{"type":"object"}')
    assert request.to_sampling_params(10, {}).structured_outputs is None  # vLLM would constrain calls by it too


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        (OBJECT | {"tool_choice": "required"}, None),  # a required call leaves no form
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}, "tool_choice": "none"}, "a"),  # vLLM's alone
    ],
)
def test_a_form_that_does_not_go_into_the_constraint(composed: Composed, fields: Any, left: str | None) -> None:
    request = composed.chat(**fields)
    assert spec_of(request).answer is None
    form = request.to_sampling_params(10, {}).structured_outputs
    assert (form and form.regex) == left


@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["no tools", "tools"])
def test_the_form_stays_vllms_without_a_constraint(composed: Composed, tools: Any) -> None:
    assert composed.chat(**REGEX, **OFF, tools=tools).to_sampling_params(10, {}).structured_outputs.regex == "a+"


def test_a_responses_format_goes_into_the_constraint(composed: Composed) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    request = responses(tools=[FLAT], text={"format": form})
    answer = spec_of(composed.adjusted(request)).answer
    assert answer is not None
    assert (answer.kind, answer.strict) == ("json", True)
    assert request.to_sampling_params(10, {}).structured_outputs is None
    assert request.text.format.schema_ == schema  # the answer repeats the field to the client


def test_a_server_without_the_processor_does_not_pretend(composed: Composed) -> None:
    serve("other:Processor", route=None)
    refused(composed, '"route": "structured_output"')
    with pytest.raises(ValueError, match='"route": "structured_output"'):
        admission.check_params(asking({"tools": [TOOL]}))
    composed.chat(**OFF)
    serve()
    composed.chat()


def test_a_strict_tool_is_kept_whole_or_refused(composed: Composed) -> None:
    composed.chat(tools=[tool("f", UNKEPT)])
    composed.chat(tools=[tool("f", UNKEPT, strict=False)])
    refused(composed, "#/minProperties: the tool is strict", tools=[tool("f", UNKEPT, strict=True)])


NOT_STRICT = tool("f", {"type": "object", "properties": {"a": {}}}, strict=False)
WITHOUT_GRAMMAR = tool("g", {"not": {}}, strict=False)


def level_of(request: Any) -> str:
    params = request.to_sampling_params(10, {})
    compiled = admission.check_params(params)
    assert compiled is not None
    in_the_engine = constraint_in(params.extra_args)
    assert in_the_engine is not None
    policy = settings.Server.settings.strict
    assert compiled.level("f") == policy.level(in_the_engine.tools[0].strict, in_the_engine.strict_false)
    return compiled.level("f")


def test_what_strict_false_means(composed: Composed) -> None:
    """By default what left out means; an operator's setting or a request's switch makes it any JSON object."""
    assert level_of(composed.chat(tools=[NOT_STRICT])) == "best_effort"
    assert level_of(composed.chat(tools=[NOT_STRICT], **xargs(strict_false="json_object"))) == "json_object"
    serve(strict={"false": "json_object"})
    assert level_of(composed.chat(tools=[NOT_STRICT])) == "json_object"
    assert level_of(composed.chat(tools=[NOT_STRICT], **xargs(strict_false="best_effort"))) == "best_effort"


def test_strict_false_on_completions() -> None:
    extra = {"constrained_k2_strict_false": "json_object"}
    given = asking({"tools": [NOT_STRICT]}, extra).extra_args
    request = CompletionRequest.model_validate({"prompt": "x", "model": "m", "vllm_xargs": given})
    assert level_of(request) == "json_object"


def test_the_engine_compiles_no_schema_that_admission_gave_up(
    composed: Composed, caplog: pytest.LogCaptureFixture
) -> None:
    admission._warn_once.cache_clear()
    body = {"tools": [NOT_STRICT, WITHOUT_GRAMMAR]}
    request, params = composed.chat(**body), asking(body)
    admission.check_params(params)
    for extra_args in (request.vllm_xargs, params.extra_args):
        sent = constraint_in(extra_args)
        assert sent is not None
        assert sent.tools == (ToolCallSpec.from_openai(body).tools[0], Tool("g", strict=False))
    (line,) = (record.getMessage() for record in caplog.records if "'g': # (" in record.getMessage())
    assert line.endswith("any JSON object is allowed)")


def test_a_server_may_be_stricter_than_its_clients_or_less(composed: Composed) -> None:
    serve(strict="strict")
    for strict in (True, None, False):
        refused(composed, "the tool is strict", tools=[tool("f", UNKEPT, strict=strict)])
    serve(strict={"max": "best_effort"})
    composed.chat(tools=[tool("f", UNKEPT, strict=True)])


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        *(
            ({"strict": wrong}, "strict")
            for wrong in ("maybe", {"min": "strict", "max": "json_object"}, {"level": "strict"})
        ),
        ({"strict": {"false": "strict"}}, r"strict\.false: unknown level 'strict'"),
        ({"stricter": "strict"}, "additional_config"),
        *(({"engines": wrong}, "engines") for wrong in (["outlines"], [], "xgrammar")),
        ({"repair": "off"}, "additional_config.constrained_k2.repair"),
        ({"undeclared_keys": "deny"}, "additional_config.constrained_k2.undeclared_keys"),
    ],
)
def test_settings_that_are_none(ours: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        serve(**ours)


@pytest.mark.slow
def test_engines_that_the_server_offers(composed: Composed) -> None:
    asked = {"vllm_xargs": {"constrained_k2": "xgrammar"}}
    refused(composed, "does not offer 'xgrammar'.*additional-config", **asked)
    serve(engines=["llguidance", "xgrammar"])
    assert spec_of(composed.chat(**asked)).engine == "xgrammar"
    assert spec_of(composed.chat()).engine is None


def test_undeclared_keys_by_the_setting_and_by_the_request(composed: Composed) -> None:
    open_tool = tool("f", {"type": "object", "properties": {"a": {}}})
    for setting in ("allow", "forbid"):
        serve(undeclared_keys=setting)
        for asked, expected in ((None, setting), ("allow", "allow"), ("forbid", "forbid")):
            given = {"vllm_xargs": {}} if asked is None else xargs(undeclared_keys=asked)
            request = composed.chat(tools=[open_tool], **given)
            assert "constrained_k2_undeclared_keys" not in request.vllm_xargs  # the constraint says it
            assert spec_of(request).undeclared_keys == asked
            compiled = admission.check_params(asking(extra=request.vllm_xargs))
            assert compiled is not None
            assert bool(compiled.coverage("f").narrowed) == (expected == "forbid")


@pytest.mark.parametrize(
    ("name", "value", "parallel", "expected"),
    [
        *(("max_calls", 3, parallel, 1 if parallel is False else 3) for parallel in (None, True, False)),
        *(("repeated_calls", value, None, value) for value in ("allow", "forbid")),
    ],
)
def test_a_rule_of_calls_becomes_part_of_the_constraint(
    composed: Composed, name: str, value: Any, parallel: Any, expected: Any
) -> None:
    request = composed.chat(**xargs(**{name: value}), parallel_tool_calls=parallel)
    assert f"constrained_k2_{name}" not in request.vllm_xargs
    assert getattr(spec_of(request), name) == expected


def test_what_is_not_kept_is_said_once(composed: Composed, caplog: pytest.LogCaptureFixture) -> None:
    admission._warn_once.cache_clear()
    request = chat(tools=[tool("said_once", UNKEPT)])
    for _ in range(3):
        composed.adjusted(request.model_copy())
    said = [record.getMessage() for record in caplog.records if "said_once" in record.getMessage()]
    assert len(said) == 1
    assert "#/minProperties" in said[0]


def test_a_required_call_is_not_cut_by_stops(composed: Composed) -> None:
    request = composed.chat(tool_choice="required", stop=['"'], stop_token_ids=[5])
    assert (request.stop, request.stop_token_ids) == ([], [])
