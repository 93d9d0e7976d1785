"""Requests of other front ends, as they reach the engine core."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import xgrammar
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine import EngineCoreRequest

from constrained_k2 import ToolCallSpec, Vocabulary
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.vllm_plugin import byte_compiler
from constrained_k2.vllm_plugin.constraint import constraint_in, is_tagged, precompile_of
from constrained_k2.vllm_plugin.engine_core import adoption
from constrained_k2.vllm_plugin.engine_core.adoption import Adoption
from constrained_k2.vllm_plugin.engine_core.structured_output import ConstrainedOutputManager
from constrained_k2.vllm_plugin.front_end import report_front_end
from constrained_k2.vllm_plugin.metrics.counters import EngineCounters
from constrained_k2.vllm_plugin.settings import settings_in
from constrained_k2.vllm_plugin.token_limits import token_limits_in
from tests.vllm_plugin.faults import Panic
from tests.vllm_plugin.scheduling import config_of

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"q": {"enum": [name]}}}}}
    for name in ("search", "web.fetch")
]  # fmt: skip


@pytest.fixture(scope="module")
def config(model: Path) -> VllmConfig:
    return config_of(model)


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> EngineCounters:
    made = EngineCounters()
    monkeypatch.setattr(adoption, "engine_counters", made)
    return made


def adopting(config: VllmConfig, vocabulary: Vocabulary, route: Any = "structured_output", **ours: Any) -> Adoption:
    given = SimpleNamespace(
        additional_config={"constrained_k2": ours},
        structured_outputs_config=SimpleNamespace(reasoning_parser=config.structured_outputs_config.reasoning_parser),
    )
    return Adoption(given, vocabulary, route)


def tag_of(**fields: Any) -> StructuredOutputsParams:
    given = {"tools": TOOLS, "tool_choice": "required", "reasoning": "disabled"} | fields
    return StructuredOutputsParams(structural_tag=xgrammar.get_model_structural_tag("kimi", **given).model_dump_json())


def request(params: SamplingParams, ids: Any = (5, 6), **fields: Any) -> EngineCoreRequest:
    given = {"request_id": "r", "prompt_token_ids": None if ids is None else list(ids), "mm_features": None,
             "sampling_params": params, "pooling_params": None, "arrival_time": 0.0, "lora_request": None,
             "cache_salt": None, "data_parallel_rank": None}  # fmt: skip
    return EngineCoreRequest(**(given | fields))


def declared(vocabulary: Vocabulary, text: str) -> list[int]:
    special, encode = vocabulary.special_tokens, vocabulary.encode
    header = [special["<|im_system|>"], *encode("tool_declare"), special["<|im_middle|>"]]
    return [*header, *encode(text), vocabulary.format.turn_end, special["<|im_user|>"], *encode("user")]


@pytest.mark.parametrize("route", ["structured_output", "logits_processor"])
def test_a_tag_is_taken_over(config: VllmConfig, vocabulary: Vocabulary, counters: EngineCounters, route: str) -> None:
    """On either route the request ends up as our own front end would have sent it."""
    markers = vocabulary.format
    extra = {"constrained_k2_finish_reserve": 9, "constrained_k2_undeclared_keys": "allow", "mine": 1}
    params = SamplingParams(structured_outputs=tag_of(parallel_tool_calls=False), extra_args=extra, max_tokens=77,
                            allowed_token_ids=[5, 6])  # fmt: skip
    asked = request(params, [5, markers.call_begin, 6, markers.call_begin])
    adopting(config, vocabulary, route).adopt(asked)
    got = asked.sampling_params
    assert got is not None and got.extra_args is not None and got.max_tokens == 77
    assert constraint_in(got.extra_args) == ToolCallSpec.from_openai(
        {
            "tools": TOOLS,
            "tool_choice": "required",
            "first_index": 2,
            "parallel_tool_calls": False,
            "undeclared_keys": "allow",
        }
    )
    assert got.extra_args["constrained_k2_finish_reserve"] == 9 and got.extra_args["mine"] == 1
    assert token_limits_in(got.extra_args).allowed_token_ids == (5, 6)
    if route == "structured_output":
        assert is_tagged(got) and precompile_of(got) == []
    else:
        assert got.structured_outputs is None
    assert counters.adopted == {"tag": 1, "prompt": 0, "xargs": 0} and not any(counters.left.values())
    before = json.dumps(got.extra_args)
    adopting(config, vocabulary, route).adopt(asked)  # n > 1: several requests may share their parameters
    assert json.dumps(got.extra_args) == before


@pytest.mark.parametrize(
    ("last", "parser", "tag", "thinks"),
    [("think_begin", "", {}, True), (None, "", {}, False), (None, "kimi_k2", {}, True), ("think_end", "kimi_k2", {}, False),
     (None, "", {"reasoning": "enabled"}, True)],
)  # fmt: skip
def test_who_may_reason(
    config: VllmConfig, vocabulary: Vocabulary, last: str | None, parser: str, tag: Any, thinks: bool
) -> None:
    ids = [5] if last is None else [5, getattr(vocabulary.format, last)]
    asked = request(SamplingParams(structured_outputs=tag_of(**tag)), ids)
    made = adopting(config, vocabulary)
    made._reasons = bool(parser)
    made.adopt(asked)
    assert asked.sampling_params is not None
    constraint = constraint_in(asked.sampling_params.extra_args)
    assert constraint is not None and constraint.thinking is thinks


UNSATISFIABLE = [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]
FOREIGN = StructuredOutputsParams(structural_tag='{"type": "structural_tag", "format": {"type": "any_text"}}')


def test_a_turn_that_the_prompt_continues_stays_vllms(
    config: VllmConfig, vocabulary: Vocabulary, counters: EngineCounters, caplog: pytest.LogCaptureFixture
) -> None:
    """After <think> and some text a turn of ours would forbid </think>. Earlier turns may have been cut anywhere."""
    markers = vocabulary.format
    earlier = [markers.think_begin, 7, markers.section_begin, markers.turn_end]
    text = [*earlier, markers.think_begin, 7, markers.think_end, 8]
    for ids in ([*earlier, markers.think_begin, 7], [*earlier, markers.section_begin, markers.call_begin, 7]):
        adopting(config, vocabulary).adopt(request(SamplingParams(structured_outputs=tag_of()), ids))
    assert counters.left["option"] == 2 and "ends inside" in caplog.text
    for ids in ([*earlier, 7], [*earlier, markers.think_begin], text):
        adopting(config, vocabulary).adopt(request(SamplingParams(structured_outputs=tag_of()), ids))
    assert counters.adopted["tag"] == 3


@pytest.mark.parametrize(
    ("reason", "structured", "extra", "fields"),
    [
        ("format", FOREIGN, None, {}),
        ("tools", tag_of(tools=UNSATISFIABLE), None, {}),
        ("tools", tag_of(), {"constrained_k2": "xgrammar"}, {}),  # an engine that the server does not offer
        ("tools", tag_of(), {"constrained_k2_undeclared_keys": 7}, {}),
        ("tools", tag_of(), {"constrained_k2_finish_reserve": "x"}, {}),
        ("option", tag_of(), {"constrained_k2": "off"}, {}),
        ("option", tag_of(), None, {"ids": None}),
        ("option", tag_of(), None, {"resumable": True}),
    ],
)
def test_what_cannot_be_adopted_stays_vllms(
    config: VllmConfig, vocabulary: Vocabulary, counters: EngineCounters, caplog: pytest.LogCaptureFixture,
    reason: str, structured: Any, extra: Any, fields: Any,
) -> None:  # fmt: skip
    asked = request(SamplingParams(structured_outputs=structured, extra_args=extra), **fields)
    adopting(config, vocabulary).adopt(asked)
    assert asked.sampling_params is not None
    assert asked.sampling_params.structured_outputs is structured and asked.sampling_params.extra_args == extra
    assert counters.left[reason] == sum(counters.left.values()) == 1 and not any(counters.adopted.values())
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"left to vLLM, {reason}: r: " in line


@pytest.mark.parametrize("error", [ZeroDivisionError, Panic])
def test_an_error_of_ours_leaves_the_request_to_vllm(
    config: VllmConfig, vocabulary: Vocabulary, counters: EngineCounters, monkeypatch: pytest.MonkeyPatch, error: Any
) -> None:
    monkeypatch.setattr(adoption, "looked_up", Mock(side_effect=error))
    asked = request(SamplingParams(structured_outputs=tag_of()))
    adopting(config, vocabulary).adopt(asked)
    assert asked.sampling_params is not None and not is_tagged(asked.sampling_params)
    assert counters.left["error"] == 1


@pytest.mark.parametrize("structured", [None, StructuredOutputsParams(json={"type": "object"})])
def test_requests_without_tools_are_left_alone(
    config: VllmConfig, vocabulary: Vocabulary, counters: EngineCounters, structured: Any
) -> None:
    params = SamplingParams(structured_outputs=structured)
    asked = request(params)
    adopting(config, vocabulary, adopt="prompt").adopt(asked)
    assert asked.sampling_params is params and params.structured_outputs is structured and params.extra_args is None
    assert not any(counters.adopted.values()) and not any(counters.left.values())


def test_declarations_in_the_prompt(
    config: VllmConfig, vocabulary: Vocabulary, counters: EngineCounters, caplog: pytest.LogCaptureFixture
) -> None:
    """They are read where the operator asks for it; else the log says once what would make the front end send tags."""
    ids = declared(vocabulary, json.dumps(TOOLS))
    by_tag = adopting(config, vocabulary)
    for _ in range(3):
        asked = request(SamplingParams(), ids)
        by_tag.adopt(asked)
        assert asked.sampling_params is not None and asked.sampling_params.extra_args is None
    (line,) = [record.getMessage() for record in caplog.records]
    assert "--tool-strict-level parameter" in line
    asked = request(SamplingParams(), ids)
    adopting(config, vocabulary, adopt="prompt").adopt(asked)
    assert asked.sampling_params is not None and is_tagged(asked.sampling_params)
    spec = ToolCallSpec.from_openai({"tools": TOOLS})
    assert constraint_in(asked.sampling_params.extra_args) == spec
    forged = request(SamplingParams(), [vocabulary.special_tokens["<|im_user|>"], 5, *ids])
    adopting(config, vocabulary, adopt="prompt").adopt(forged)
    assert forged.sampling_params is not None and forged.sampling_params.extra_args is None
    assert counters.adopted["prompt"] == 1


@pytest.mark.parametrize(
    "text", ["namespace functions { }", '{"a": 1}', "[1]", "[", "[" * 9000, '[{"type": "function"}]']
)
def test_declarations_that_are_no_json_tools(
    config: VllmConfig, vocabulary: Vocabulary, counters: EngineCounters, text: str
) -> None:
    asked = request(SamplingParams(), declared(vocabulary, text))
    adopting(config, vocabulary, adopt="prompt").adopt(asked)
    assert asked.sampling_params is not None and asked.sampling_params.extra_args is None
    assert counters.left["format"] + counters.left["tools"] == 1


def test_schemas_that_a_tag_leaves_free_come_from_the_prompt(config: VllmConfig, vocabulary: Vocabulary) -> None:
    """vLLM's level "function" sends names without schemas, the prompt both."""
    free = [{"type": "function", "function": tool["function"] | {"strict": False}} for tool in TOOLS]
    for adopt, parameters in (("tag", {"type": "object"}), ("prompt", TOOLS[1]["function"]["parameters"])):
        asked = request(SamplingParams(structured_outputs=tag_of(tools=free)), declared(vocabulary, json.dumps(TOOLS)))
        adopting(config, vocabulary, adopt=adopt).adopt(asked)
        assert asked.sampling_params is not None
        constraint = constraint_in(asked.sampling_params.extra_args)
        assert constraint is not None and constraint.tools[1].parameters == parameters


def test_a_constraint_that_no_front_end_of_ours_has_checked(
    config: VllmConfig, vocabulary: Vocabulary, counters: EngineCounters
) -> None:
    extra = {"constrained_k2": json.dumps({"tools": TOOLS}), "constrained_k2_token_limits": {"bad_words": [[7]]}}
    asked = request(SamplingParams(extra_args=extra, allowed_token_ids=[5]))
    adopting(config, vocabulary).adopt(asked)
    assert asked.sampling_params is not None and is_tagged(asked.sampling_params)
    limits = token_limits_in(asked.sampling_params.extra_args)
    assert (limits.allowed_token_ids, limits.bad_words) == ((5,), ())  # not what the client put in their place
    on_workers = request(SamplingParams(extra_args=extra))
    adopting(config, vocabulary, "logits_processor").adopt(on_workers)
    assert on_workers.sampling_params is not None and on_workers.sampling_params.structured_outputs is None
    assert counters.adopted["xargs"] == 1


def test_calls_without_a_constraint_are_counted(
    config: VllmConfig, vocabulary: Vocabulary, counters: EngineCounters
) -> None:
    """A constraint beside a structural tag holds nothing where the engine core constrains."""
    begin = vocabulary.format.call_begin
    adopted = request(SamplingParams(extra_args={"constrained_k2": "{}"}))
    beside = request(SamplingParams(extra_args={"constrained_k2": "{}"}, structured_outputs=tag_of()))
    others = [request(SamplingParams(extra_args=extra)) for extra in (None, {"constrained_k2": "off"})]
    for asked in (adopted, beside, *others):
        adopting(config, vocabulary).adopt(asked)
        finished = SimpleNamespace(sampling_params=asked.sampling_params, _output_token_ids=[begin, 1, begin])
        adopting(config, vocabulary).count_calls(finished)
    assert counters.unconstrained_calls == 6
    assert counters.snapshot()["totals"]["unconstrained_calls"] == 6
    on_workers = SimpleNamespace(
        sampling_params=SamplingParams(extra_args={"constrained_k2": "{}"}), _output_token_ids=[begin]
    )
    adopting(config, vocabulary, "logits_processor").count_calls(on_workers)
    assert counters.unconstrained_calls == 6


SLOW = {
    "properties": {f"p{n}": {"patternProperties": {f"^{n}a": {"type": "string"}, f"b{n}$": {}}} for n in range(100)}
}


@pytest.mark.parametrize(
    ("schema", "fields", "said"),
    [
        (SLOW, {}, "too long"),
        ({"type": "object"}, {"engine": "xgrammar"}, "does not offer"),
        ({"type": "string"}, {}, "always an object"),
    ],
)
def test_a_constraint_that_nothing_has_checked_is_checked_before_it_is_scheduled(
    config: VllmConfig, vocabulary: Vocabulary, counters: EngineCounters, monkeypatch: pytest.MonkeyPatch,
    schema: Any, fields: Any, said: str,
) -> None:  # fmt: skip
    """The model's grammars have no limit on time, and the scheduler's thread compiles those of tools that are called."""
    monkeypatch.setattr(
        byte_compiler.byte_compiler(settings_in(config), byte_compiler.ENGINE_CORE), "_compile_seconds", 0.05
    )
    manager = ConstrainedOutputManager(config)
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    asked = request(SamplingParams(extra_args={"constrained_k2": json.dumps({"tools": tools} | fields)}))
    adopting(config, vocabulary).adopt(asked)
    assert asked.sampling_params is not None and precompile_of(asked.sampling_params) is None
    admitted = SimpleNamespace(
        request_id="r", sampling_params=asked.sampling_params, prompt_token_ids=[5, 6], num_prompt_tokens=2
    )
    with pytest.raises(ConstrainedK2Error, match=said):
        manager._tool_call_grammar(admitted)


@pytest.mark.parametrize(
    ("parser", "level", "ours", "said"),
    [
        ("kimi_k2", "auto", {"route": "structured_output"}, "Add --tool-strict-level parameter"),
        ("kimi_k2", "function", {"route": "structured_output"}, "leaves its arguments free"),
        ("kimi_k2", "parameter", {"route": "structured_output"}, ""),
        ("kimi_k2", "auto", {"route": "structured_output", "adopt": "prompt"}, ""),
        ("kimi_k2", "parameter", {"route": "structured_output", "adopt": "off"}, "Leave out adopt"),
        ("kimi_k2", "parameter", {}, "no request is constrained"),
        ("kimi_k2_constrained", "auto", {"route": "structured_output"}, ""),
        (None, "auto", {"route": "structured_output"}, ""),
    ],
)
def test_the_log_says_who_is_constrained(
    caplog: pytest.LogCaptureFixture, parser: str | None, level: str, ours: Any, said: str
) -> None:
    args = SimpleNamespace(tool_call_parser=parser, tool_strict_level=level)
    caplog.set_level("INFO", "vllm.constrained_k2")
    report_front_end(args, SimpleNamespace(additional_config={"constrained_k2": ours}, logits_processors=None))
    (record,) = caplog.records
    expected = f"front end Python, tool parser {parser or 'none'}, route {ours.get('route', 'none')}"
    assert expected in record.getMessage()
    assert said in record.getMessage() and (record.levelname == "WARNING") == bool(said)
