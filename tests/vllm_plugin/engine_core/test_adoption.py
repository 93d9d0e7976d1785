"""Requests of other front ends, as the engine core adopts them."""

import json
from typing import Any
from unittest.mock import Mock

import pytest
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from constrained_k2 import ToolCallSpec, Vocabulary
from constrained_k2.vllm_plugin.engine_core import adoption
from constrained_k2.vllm_plugin.shared import byte_compiler
from constrained_k2.vllm_plugin.shared.constraint import constraint_in, is_tagged, precompile_of
from constrained_k2.vllm_plugin.shared.counters import EngineCounters
from constrained_k2.vllm_plugin.shared.token_limits import token_limits_in
from tests.vllm_plugin.arriving import NO_VALUE, SLOW, TOOLS, intake_of, one_tool, request, tag_of, taken
from tests.vllm_plugin.faults import Panic


def tagged(extra: Any = None, *, parser: Any = None, **tag: Any) -> SamplingParams:
    return SamplingParams(structured_outputs=parser or tag_of(**tag), extra_args=extra)


def declared(vocabulary: Vocabulary, text: str) -> list[int]:
    special, encode = vocabulary.special_tokens, vocabulary.encode
    header = [special["<|im_system|>"], *encode("tool_declare"), special["<|im_middle|>"]]
    return [*header, *encode(text), vocabulary.format.turn_end, special["<|im_user|>"], *encode("user")]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("route", ["structured_output", "logits_processor"])
def test_a_tag_is_taken_over(vocabulary: Vocabulary, counters: EngineCounters, route: str) -> None:
    """On either route the request ends up as our own front end would have sent it."""
    markers = vocabulary.format
    extra = {"constrained_k2_finish_reserve": 9, "constrained_k2_undeclared_keys": "allow", "mine": 1,
             "constrained_k2_max_calls": 4, "constrained_k2_repeated_calls": "forbid"}  # fmt: skip
    params = SamplingParams(structured_outputs=tag_of(parallel_tool_calls=False), extra_args=extra, max_tokens=77,
                            allowed_token_ids=[5, 6])  # fmt: skip
    asked = request(params, [5, markers.call_begin, 6, markers.call_begin])
    intake_of(vocabulary, route).take(asked)
    got = asked.sampling_params
    assert got is not None and got.extra_args is not None and got.max_tokens == 77
    body = {"tools": TOOLS, "tool_choice": "required", "first_index": 2, "parallel_tool_calls": False,
            "undeclared_keys": "allow", "undeclared_calls": "nearest", "max_calls": 4}  # fmt: skip
    assert constraint_in(got.extra_args) == ToolCallSpec.from_openai(body)
    assert got.extra_args["constrained_k2_finish_reserve"] == 9 and got.extra_args["mine"] == 1
    assert token_limits_in(got.extra_args).allowed_token_ids == (5, 6)
    if route == "structured_output":
        assert is_tagged(got) and precompile_of(got) is not None  # which are slow depends on the machine
    else:
        assert got.structured_outputs is None
    assert counters.adopted == {"tag": 1, "prompt": 0, "xargs": 0} and not any(counters.left.values())
    before = json.dumps(got.extra_args)
    intake_of(vocabulary, route).take(asked)  # n > 1: several requests may share their parameters
    assert json.dumps(got.extra_args) == before


@pytest.mark.parametrize(
    ("last", "parser", "tag", "thinks"),
    [("think_begin", "", {}, True), (None, "", {}, False), (None, "kimi_k2", {}, True), ("think_end", "kimi_k2", {}, False),
     (None, "", {"reasoning": "enabled"}, True)],
)  # fmt: skip
def test_who_may_reason(vocabulary: Vocabulary, last: str | None, parser: str, tag: Any, thinks: bool) -> None:
    asked = request(tagged(**tag), [5] if last is None else [5, getattr(vocabulary.format, last)])
    made = intake_of(vocabulary)
    assert made._adoption is not None
    made._adoption._reasons = bool(parser)
    made.take(asked)
    constraint = constraint_in(asked.sampling_params and asked.sampling_params.extra_args)
    assert constraint is not None and constraint.thinking is thinks


def test_a_turn_that_the_prompt_continues_stays_vllms(
    vocabulary: Vocabulary, counters: EngineCounters, caplog: pytest.LogCaptureFixture
) -> None:
    """After <think> and some text a turn of ours would forbid </think>. Earlier turns may have been cut anywhere."""
    markers = vocabulary.format
    earlier = [markers.think_begin, 7, markers.section_begin, markers.turn_end]
    text = [*earlier, markers.think_begin, 7, markers.think_end, 8]
    for ids in ([*earlier, markers.think_begin, 7], [*earlier, markers.section_begin, markers.call_begin, 7]):
        taken(vocabulary, tagged(), ids)
    assert counters.left["option"] == 2 and "ends inside" in caplog.text
    for ids in ([*earlier, 7], [*earlier, markers.think_begin], text):
        taken(vocabulary, tagged(), ids)
    assert counters.adopted["tag"] == 3


FOREIGN = StructuredOutputsParams(structural_tag='{"type": "structural_tag", "format": {"type": "any_text"}}')


@pytest.mark.parametrize(
    ("reason", "params", "fields"),
    [
        ("format", tagged(parser=FOREIGN), {}),
        ("tools", tagged({"constrained_k2": "xgrammar"}), {}),  # an engine that the server does not offer
        ("tools", tagged({"constrained_k2_undeclared_keys": 7}), {}),
        ("tools", tagged({"constrained_k2_finish_reserve": "x"}), {}),
        ("tools", tagged({"constrained_k2_max_calls": 0}), {}),
        ("tools", tagged({"constrained_k2_repeated_calls": "never"}), {}),
        ("option", tagged({"constrained_k2": "off"}), {}),
        ("option", tagged(), {"prompt_token_ids": None}),
        ("option", tagged(), {"resumable": True}),
    ],
)
def test_what_cannot_be_adopted_stays_vllms(
    vocabulary: Vocabulary, counters: EngineCounters, caplog: pytest.LogCaptureFixture,
    reason: str, params: SamplingParams, fields: Any,
) -> None:  # fmt: skip
    structured, extra = params.structured_outputs, params.extra_args
    got = taken(vocabulary, params, fields=fields)
    assert got.structured_outputs is structured and got.extra_args == extra
    assert counters.left[reason] == sum(counters.left.values()) == 1 and not any(counters.adopted.values())
    (line,) = warnings(caplog)
    assert f"left to vLLM, {reason}: r: " in line


@pytest.mark.parametrize("error", [ZeroDivisionError, Panic])
def test_an_error_of_ours_leaves_the_request_to_vllm(
    vocabulary: Vocabulary, counters: EngineCounters, monkeypatch: pytest.MonkeyPatch, error: Any
) -> None:
    monkeypatch.setattr(adoption, "compiled_over_bytes", Mock(side_effect=error))
    assert not is_tagged(taken(vocabulary, tagged()))
    assert counters.left["error"] == 1


@pytest.mark.parametrize("structured", [None, StructuredOutputsParams(json={"type": "object"})])
def test_requests_without_tools_are_left_alone(
    vocabulary: Vocabulary, counters: EngineCounters, structured: Any
) -> None:
    params = SamplingParams(structured_outputs=structured)
    assert taken(vocabulary, params, adopt="prompt") is params
    assert params.structured_outputs is structured and params.extra_args is None
    assert not any(counters.adopted.values()) and not any(counters.left.values())


def test_declarations_in_the_prompt(
    vocabulary: Vocabulary, counters: EngineCounters, caplog: pytest.LogCaptureFixture
) -> None:
    """They are read where the operator asks for it; else the log says once what would make the front end send tags."""
    ids = declared(vocabulary, json.dumps(TOOLS))
    by_tag = intake_of(vocabulary)
    for _ in range(3):
        asked = request(SamplingParams(), ids)
        by_tag.take(asked)
        assert asked.sampling_params is not None and asked.sampling_params.extra_args is None
    (line,) = warnings(caplog)
    assert "--tool-strict-level parameter" in line
    got = taken(vocabulary, SamplingParams(), ids, adopt="prompt")
    assert is_tagged(got)
    spec = ToolCallSpec.from_openai({"tools": TOOLS, "undeclared_calls": "nearest"})
    assert constraint_in(got.extra_args) == spec
    forged = [vocabulary.special_tokens["<|im_user|>"], 5, *ids]
    assert taken(vocabulary, SamplingParams(), forged, adopt="prompt").extra_args is None
    assert counters.adopted["prompt"] == 1


@pytest.mark.parametrize(
    "text", ["namespace functions { }", '{"a": 1}', "[1]", "[", "[" * 9000, '[{"type": "function"}]']
)
def test_declarations_that_are_no_json_tools(vocabulary: Vocabulary, counters: EngineCounters, text: str) -> None:
    assert taken(vocabulary, SamplingParams(), declared(vocabulary, text), adopt="prompt").extra_args is None
    assert counters.left["format"] + counters.left["tools"] == 1


def test_schemas_that_a_tag_leaves_free_come_from_the_prompt(vocabulary: Vocabulary) -> None:
    """vLLM's level "function" sends names without schemas, the prompt both."""
    free = [{"type": "function", "function": tool["function"] | {"strict": False}} for tool in TOOLS]
    for adopt, parameters in (("tag", {"type": "object"}), ("prompt", TOOLS[1]["function"]["parameters"])):
        got = taken(vocabulary, tagged(tools=free), declared(vocabulary, json.dumps(TOOLS)), adopt=adopt)
        constraint = constraint_in(got.extra_args)
        assert constraint is not None and constraint.tools[1].parameters == parameters


def test_a_schema_that_takes_too_long_is_not_compiled_again_at_once(
    vocabulary: Vocabulary, counters: EngineCounters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compilation holds up all requests that arrive behind it."""
    taking = intake_of(vocabulary)
    compiler = byte_compiler.byte_compiler(taking._settings, byte_compiler.ENGINE_CORE)
    compiler.forget()
    monkeypatch.setattr(compiler, "_compile_seconds", 0.05)
    build = Mock(side_effect=compiler._build)
    monkeypatch.setattr(compiler, "_build", build)
    for _ in range(3):
        taking.take(request(tagged(tools=one_tool(SLOW))))
    assert counters.adopted["tag"] == 3
    assert sum("patternProperties" in call.args[0] for call in build.call_args_list) == 1


def test_a_tool_without_a_grammar_takes_any_object(
    vocabulary: Vocabulary, counters: EngineCounters, caplog: pytest.LogCaptureFixture
) -> None:
    constraint = constraint_in(taken(vocabulary, tagged(tools=[*one_tool(NO_VALUE), *TOOLS])).extra_args)
    kept = [tool["function"]["parameters"] for tool in TOOLS]
    assert constraint is not None and [tool.parameters for tool in constraint.tools] == [{"type": "object"}, *kept]
    assert counters.adopted["tag"] == 1
    assert "not enforced in a schema: 'f': # (no value satisfies this schema: any JSON object" in caplog.text
