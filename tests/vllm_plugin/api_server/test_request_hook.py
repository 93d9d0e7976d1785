"""Requests lowered and refused inside vLLM's own composition of parsers, on vLLM's own request objects."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.exceptions import VLLMValidationError

from constrained_k2 import Tool, ToolCallSpec
from constrained_k2.vllm_plugin.api_server import admission
from constrained_k2.vllm_plugin.shared.constraint import constraint_in
from constrained_k2.vllm_plugin.shared.log import _warn_once
from constrained_k2.vllm_plugin.shared.server import Server, remember_server
from tests.kit.tools import tool
from tests.vllm_plugin.parsers import TOOL, Composed, chat, spec_of
from tests.vllm_plugin.served import PROCESSOR, asking

CALL = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = [
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "functions.f:0", "content": "1"},
]
OFF = {"vllm_xargs": {"constrained_k2": "off"}}
UNKEPT = {"type": "object", "minProperties": 70}


def serve(*processors: str, route: Any = "logits_processor", **ours: Any) -> None:
    """Have a server of these flags and settings started."""
    model = SimpleNamespace(logits_processors=list(processors or [PROCESSOR]), served_model_name="kimi-k2")
    config = SimpleNamespace(model_config=model, additional_config={"constrained_k2": ours} if ours else {})
    remember_server(config, route)


def xargs(**fields: Any) -> dict[str, Any]:
    return {"vllm_xargs": {f"constrained_k2_{name}": value for name, value in fields.items() if value is not None}}


def refused(composed: Composed, message: str, **fields: Any) -> None:
    with pytest.raises(VLLMValidationError, match=message):
        composed.chat(**fields)


def test_a_chat_request_is_lowered(composed: Composed) -> None:
    history = [{"role": "assistant", "tool_calls": [CALL, CALL]}, {"role": "tool", "tool_call_id": "x", "content": "1"}]
    request = composed.chat(
        messages=history, vllm_xargs={"other": 1}, tool_choice="required", stop=['"'], stop_token_ids=[5]
    )
    spec = spec_of(request)
    assert (spec.first_index, spec.choice, spec.parallel) == (2, "required", True)
    assert request.vllm_xargs["other"] == 1
    assert request.to_sampling_params(10, {}).extra_args["constrained_k2"] == spec.to_json()
    assert [message["role"] for message in request.messages] == ["assistant", "tool"]
    assert len(list(request.messages[0]["tool_calls"])) == 2  # lazy values were not used up
    assert (request.stop, request.stop_token_ids) == ([], [])  # they could only cut the call


@pytest.mark.parametrize(
    ("fields", "choice", "max_calls"),
    [
        ({}, "auto", None),
        ({"tool_choice": "none"}, "none", 0),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "required", 1),
        ({"parallel_tool_calls": False}, "auto", 1),
        (xargs(max_calls=3), "auto", 3),
        (xargs(max_calls=3) | {"parallel_tool_calls": True}, "auto", 3),
        (xargs(max_calls=3) | {"parallel_tool_calls": False}, "auto", 1),
    ],
)
def test_choices_and_bounds_of_calls(composed: Composed, fields: Any, choice: str, max_calls: int | None) -> None:
    request = composed.chat(**fields)
    assert (spec_of(request).choice, spec_of(request).max_calls) == (choice, max_calls)
    assert "constrained_k2_max_calls" not in request.vllm_xargs  # the constraint says it


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
        OFF,
        {"tools": None, "vllm_xargs": {"constrained_k2": "on", "other": 1}},
        {"tools": None, "vllm_xargs": {"constrained_k2": "llguidance"}},
        {"tools": None, "messages": CALLED} | OFF,
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


SAID_OF_KEYS = "vllm_xargs.constrained_k2_undeclared_keys: must be 'allow' or 'forbid'"
SAID_OF_BOUNDS = "vllm_xargs.constrained_k2_max_calls: must be a whole number from 1"
SAID_OF_REPEATS = "vllm_xargs.constrained_k2_repeated_calls: must be 'allow' or 'forbid'"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [tool("f", {"not": {}}, strict=True)]}, "no value satisfies"),
        ({"vllm_xargs": {"constrained_k2": "{}"}}, "vllm_xargs.constrained_k2"),
        (xargs(strict_false="maybe"), "vllm_xargs.constrained_k2_strict_false: unknown level 'maybe'"),
        *((xargs(undeclared_keys=value), SAID_OF_KEYS) for value in ("deny", "", 1)),
        *((xargs(max_calls=value), SAID_OF_BOUNDS) for value in (0, -2, "3", 1.5)),
        *((xargs(repeated_calls=value), SAID_OF_REPEATS) for value in ("allow them", "forbid them")),
    ],
)
def test_requests_that_cannot_be_constrained(composed: Composed, fields: Any, message: str) -> None:
    refused(composed, re.escape(message), **fields)


def test_a_server_that_does_not_constrain_does_not_pretend(composed: Composed) -> None:
    serve("other:Processor", route=None)
    refused(composed, '"route": "structured_output"')
    with pytest.raises(ValueError, match='"route": "structured_output"'):
        admission.check_params(asking({"tools": [TOOL]}))
    composed.chat(**OFF)
    assert not composed.chat(tools=None, messages=CALLED).vllm_xargs
    serve()
    composed.chat()


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize(
    ("setting", "strict", "asked", "level"),
    [
        (None, None, None, "best_effort"),
        (None, False, None, "best_effort"),
        (None, False, "json_object", "json_object"),
        (None, True, None, "refused"),
        ({"false": "json_object"}, False, None, "json_object"),
        ({"false": "json_object"}, False, "best_effort", "best_effort"),
        *(("strict", strict, None, "refused") for strict in (True, None, False)),
        ({"max": "best_effort"}, True, None, "best_effort"),
    ],
)
def test_how_far_a_schema_is_enforced(
    composed: Composed, endpoint: str, setting: Any, strict: Any, asked: Any, level: str
) -> None:
    """By the tool, the operator's setting and the request's switch; the engine core comes to the same."""
    if setting is not None:
        serve(strict=setting)
    tools, extra = [tool("f", UNKEPT, strict=strict)], xargs(strict_false=asked)

    def params() -> Any:
        if endpoint == "chat":
            return composed.chat(tools=tools, **extra).to_sampling_params(10, {})
        given = asking({"tools": tools}, extra["vllm_xargs"]).extra_args
        body = {"prompt": "x", "model": "m", "vllm_xargs": given}
        return CompletionRequest.model_validate(body).to_sampling_params(10, {})

    if level == "refused":
        with pytest.raises((ValueError, VLLMValidationError), match="#/minProperties: the tool is strict"):
            admission.check_params(params())
        return
    compiled = admission.check_params(made := params())
    in_the_engine = constraint_in(made.extra_args)
    assert compiled is not None and in_the_engine is not None
    policy = Server.settings.strict
    assert compiled.level("f") == level == policy.level(in_the_engine.tools[0].strict, in_the_engine.strict_false)


def test_the_engine_compiles_no_schema_that_admission_gave_up(
    composed: Composed, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_once.cache_clear()
    kept = tool("f", {"type": "object", "properties": {"a": {}}}, strict=False)
    body = {"tools": [kept, tool("g", {"not": {}}, strict=False)]}
    request, params = composed.chat(**body), asking(body)
    admission.check_params(params)
    for extra_args in (request.vllm_xargs, params.extra_args):
        sent = constraint_in(extra_args)
        assert sent is not None
        assert sent.tools == (ToolCallSpec.from_openai(body).tools[0], Tool("g", strict=False))
    (line,) = (record.getMessage() for record in caplog.records if "'g': # (" in record.getMessage())
    assert line.endswith("any JSON object is allowed)")


@pytest.mark.slow
def test_engines_that_the_server_offers(composed: Composed) -> None:
    asked = {"vllm_xargs": {"constrained_k2": "xgrammar"}}
    refused(composed, "does not offer 'xgrammar'.*additional-config", **asked)
    serve(engines=["llguidance", "xgrammar"])
    assert spec_of(composed.chat(**asked)).engine == "xgrammar"
    assert spec_of(composed.chat()).engine is None


@pytest.mark.parametrize("setting", ["allow", "forbid"])
@pytest.mark.parametrize("asked", [None, "allow", "forbid"])
def test_undeclared_keys_by_the_setting_and_by_the_request(composed: Composed, setting: str, asked: Any) -> None:
    serve(undeclared_keys=setting)
    open_tool = tool("f", {"type": "object", "properties": {"a": {}}})
    request = composed.chat(tools=[open_tool], **xargs(undeclared_keys=asked))
    assert "constrained_k2_undeclared_keys" not in request.vllm_xargs  # the constraint says it
    assert spec_of(request).undeclared_keys == asked
    compiled = admission.check_params(asking(extra=request.vllm_xargs))
    assert compiled is not None
    assert bool(compiled.coverage("f").narrowed) == ((asked or setting) == "forbid")


@pytest.mark.parametrize("value", ["allow", "forbid"])
def test_repeated_calls_become_part_of_the_constraint(composed: Composed, value: Any) -> None:
    request = composed.chat(**xargs(repeated_calls=value))
    assert request.vllm_xargs.keys() == {"constrained_k2"}
    assert spec_of(request).repeated_calls == value


def test_what_is_not_kept_is_said_once(composed: Composed, caplog: pytest.LogCaptureFixture) -> None:
    _warn_once.cache_clear()
    request = chat(tools=[tool("said_once", UNKEPT)])
    for _ in range(3):
        composed.adjusted(request.model_copy())
    (said,) = [record.getMessage() for record in caplog.records if "said_once" in record.getMessage()]
    assert "#/minProperties" in said
