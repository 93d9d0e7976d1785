"""Requests that reach the engine core with a constraint: of our front end, or in ``vllm_xargs`` past every one of ours."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.sampling_params import StructuredOutputsParams

from constrained_k2 import Vocabulary
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.vllm_plugin.engine_core import intake
from constrained_k2.vllm_plugin.engine_core.structured_output import ConstrainedOutputManager
from constrained_k2.vllm_plugin.shared import byte_compiler
from constrained_k2.vllm_plugin.shared.constraint import constraint_in, is_refused, is_tagged, precompile_of, tag
from constrained_k2.vllm_plugin.shared.counters import EngineCounters
from constrained_k2.vllm_plugin.shared.settings import Route, settings_in
from constrained_k2.vllm_plugin.shared.token_limits import token_limits_in
from tests.vllm_plugin.arriving import NO_VALUE, SLOW, TOOLS, intake_of, one_tool, request, tag_of
from tests.vllm_plugin.faults import Panic
from tests.vllm_plugin.scheduling import ScriptedEngine, admitted, config_of

PROCESSOR = "constrained_k2.vllm_plugin:KimiK2LogitsProcessor"


def own(schema: Any, **fields: Any) -> dict[str, Any]:
    """A constraint that a client writes itself."""
    return {"constrained_k2": json.dumps({"tools": one_tool(schema, strict=True)} | fields)}


@pytest.fixture(scope="module")
def config(model: Path) -> VllmConfig:
    return config_of(model)


def test_a_constraint_that_no_front_end_of_ours_has_checked_is_tagged(
    vocabulary: Vocabulary, counters: EngineCounters
) -> None:
    extra = {"constrained_k2": json.dumps({"tools": TOOLS}), "constrained_k2_token_limits": {"bad_words": [[7]]}}
    asked = request(SamplingParams(extra_args=extra, allowed_token_ids=[5]))
    intake_of(vocabulary).take(asked)
    assert asked.sampling_params is not None and is_tagged(asked.sampling_params)
    limits = token_limits_in(asked.sampling_params.extra_args)
    assert (limits.allowed_token_ids, limits.bad_words) == ((5,), ())  # not what the client put in their place
    assert counters.adopted["xargs"] == 1


def test_calls_without_a_constraint_are_counted(vocabulary: Vocabulary, counters: EngineCounters) -> None:
    """A constraint beside a structural tag holds nothing where the engine core constrains."""
    begin = vocabulary.format.call_begin
    adopted = request(SamplingParams(extra_args={"constrained_k2": "{}"}))
    beside = request(SamplingParams(extra_args={"constrained_k2": "{}"}, structured_outputs=tag_of()))
    others = [request(SamplingParams(extra_args=extra)) for extra in (None, {"constrained_k2": "off"})]
    for asked in (adopted, beside, *others):
        intake_of(vocabulary).take(asked)
        finished = SimpleNamespace(
            request_id="a", sampling_params=asked.sampling_params, _output_token_ids=[begin, 1, begin]
        )
        intake_of(vocabulary).end(finished)
    assert counters.unconstrained_calls == 6
    assert counters.snapshot()["totals"]["unconstrained_calls"] == 6
    on_workers = SimpleNamespace(
        request_id="a", sampling_params=SamplingParams(extra_args={"constrained_k2": "{}"}), _output_token_ids=[begin]
    )
    intake_of(vocabulary, "logits_processor").end(on_workers)
    assert counters.unconstrained_calls == 6


@pytest.mark.parametrize("route", get_args(Route))
def test_calls_are_counted_where_nothing_is_adopted(
    vocabulary: Vocabulary, counters: EngineCounters, route: Route
) -> None:
    taking = intake_of(vocabulary, route, adopt="off")
    tagged = tag_of()
    for structured in (tagged, None):
        asked = request(SamplingParams(structured_outputs=structured))
        taking.take(asked)
        assert asked.sampling_params is not None and asked.sampling_params.structured_outputs is structured
        taking.end(
            SimpleNamespace(
                request_id="a", sampling_params=asked.sampling_params, _output_token_ids=[vocabulary.format.call_begin]
            )
        )
    assert counters.unconstrained_calls == 2
    assert not any(counters.adopted.values()) and not any(counters.left.values())


@pytest.mark.parametrize(
    ("schema", "fields", "said"),
    [
        (SLOW, {}, "too long"),
        ({"type": "object"}, {"engine": "xgrammar"}, "does not offer"),
        (NO_VALUE, {}, "no value satisfies"),
    ],
)
def test_a_constraint_that_nothing_has_checked_is_checked_before_it_is_scheduled(
    config: VllmConfig, vocabulary: Vocabulary, counters: EngineCounters, monkeypatch: pytest.MonkeyPatch,
    schema: Any, fields: Any, said: str,
) -> None:  # fmt: skip
    """The model's grammars have no limit on time, and the scheduler's thread compiles those of tools that are called."""
    if schema is SLOW:
        compiler = byte_compiler.byte_compiler(settings_in(config), byte_compiler.ENGINE_CORE)
        monkeypatch.setattr(compiler, "_compile_seconds", 0.05)
    manager = ConstrainedOutputManager(config)
    asked = request(SamplingParams(extra_args=own(schema, **fields)))
    intake_of(vocabulary).take(asked)
    assert asked.sampling_params is not None and precompile_of(asked.sampling_params) is None
    admitted = SimpleNamespace(
        request_id="r", sampling_params=asked.sampling_params, prompt_token_ids=[5, 6], num_prompt_tokens=2
    )
    with pytest.raises(ConstrainedK2Error, match=said):
        manager._tool_call_grammar(admitted)


UNCHECKED: list[tuple[dict[str, Any], Any, str]] = [
    (own(SLOW), None, "too long"),
    (own(NO_VALUE), None, "no value satisfies"),
    (own({"type": "object"}, engine="xgrammar"), None, "does not offer"),
    (own({"type": "object"}) | {"constrained_k2_finish_reserve": "x"}, None, "finish_reserve"),
    ({"constrained_k2": 7}, None, "must be a string"),
    ({"constrained_k2": "["}, None, "vllm_xargs.constrained_k2"),
    (own({"type": "object"}), StructuredOutputsParams(regex="a"), "cannot be combined"),
]


@pytest.mark.parametrize(("extra", "structured", "said"), UNCHECKED)
def test_workers_get_no_constraint_that_nothing_has_checked(
    vocabulary: Vocabulary, counters: EngineCounters, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    extra: dict[str, Any], structured: Any, said: str,
) -> None:  # fmt: skip
    """They compile without a limit on time, in the step that samples."""
    taking = intake_of(vocabulary, "logits_processor")
    compiler = byte_compiler.byte_compiler(taking._settings, byte_compiler.ENGINE_CORE)
    if extra == own(SLOW):
        compiler.forget()
        monkeypatch.setattr(compiler, "_compile_seconds", 0.05)
    given = SamplingParams(extra_args=extra, structured_outputs=structured)
    asked = request(given)
    taking.take(asked)
    assert asked.sampling_params is not None and is_refused(asked.sampling_params)
    assert given.structured_outputs is structured  # several requests may share their parameters
    assert counters.ended_early == 1 and not any(counters.adopted.values())
    (line,) = [record.getMessage() for record in caplog.records]
    assert "a request is refused: r: " in line and said in line


def test_a_panic_while_a_constraint_is_checked_ends_its_request_only(
    vocabulary: Vocabulary, counters: EngineCounters, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panic(*_: Any) -> None:
        raise Panic("a panic")

    monkeypatch.setattr(intake, "looked_up", panic)
    asked = request(SamplingParams(extra_args=own({"type": "object"})))
    intake_of(vocabulary, "logits_processor").take(asked)
    assert asked.sampling_params is not None and is_refused(asked.sampling_params)
    assert counters.ended_early == 1


@pytest.mark.parametrize("strict", [None, False])
def test_workers_get_a_constraint_that_holds(
    vocabulary: Vocabulary, counters: EngineCounters, caplog: pytest.LogCaptureFixture, *, strict: bool | None
) -> None:
    """With the limits on tokens that it came with, and any JSON object where a schema has no grammar."""
    tools = one_tool(NO_VALUE, strict=strict)
    extra = {"constrained_k2": json.dumps({"tools": tools}), "constrained_k2_token_limits": {"bad_words": [[7]]}}
    asked = request(SamplingParams(extra_args=extra, allowed_token_ids=[5]))
    intake_of(vocabulary, "logits_processor").take(asked)
    params = asked.sampling_params
    assert params is not None and params.structured_outputs is None and params.allowed_token_ids is None
    limits = token_limits_in(params.extra_args)
    assert (limits.allowed_token_ids, limits.bad_words) == ((5,), ())
    constraint = constraint_in(params.extra_args)
    assert constraint is not None and json.loads(constraint.tools[0].schema) == {"type": "object"}
    assert counters.adopted["xargs"] == 1
    assert "not enforced in a schema: 'f': # (no value satisfies this schema: any JSON object" in caplog.text


def test_structured_outputs_of_vllms_stay_beside_a_constraint_that_forbids_calls(
    vocabulary: Vocabulary, counters: EngineCounters
) -> None:
    given = SamplingParams(
        extra_args=own({"type": "object"}, tool_choice="none"), structured_outputs=StructuredOutputsParams(regex="a")
    )
    asked = request(given)
    intake_of(vocabulary, "logits_processor").take(asked)
    assert asked.sampling_params.structured_outputs is given.structured_outputs
    assert not counters.ended_early and not any(counters.adopted.values())


def test_what_our_front_end_has_checked_is_not_checked_again(
    vocabulary: Vocabulary, counters: EngineCounters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers get it without the tag: to vLLM that would be a structured output."""

    def fail(*_: Any) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(intake, "looked_up", fail)
    extra = own({"type": "object"})
    given = SamplingParams(extra_args=extra)
    tag(given, [])
    for route in get_args(Route):
        asked = request(given)
        intake_of(vocabulary, route).take(asked)
        assert asked.sampling_params is not None and asked.sampling_params.extra_args is not None
        assert asked.sampling_params.extra_args == extra
        assert is_tagged(given)  # several requests may share their parameters
        assert (asked.sampling_params.structured_outputs is None) == (route == "logits_processor")
    assert not counters.ended_early and not any(counters.adopted.values())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_refused_request_ends_alone(model: Path, vocabulary: Vocabulary, asynchronous: bool) -> None:
    """vLLM's scheduler ends it with an error, as it ends one whose grammar cannot be built."""
    processor = config_of(model, speculative_config=None, additional_config={}, logits_processors=[PROCESSOR])
    engine = ScriptedEngine(processor, asynchronous=asynchronous)
    taking = engine.manager.intake
    assert taking is not None
    stop = vocabulary.format.turn_end
    for name, schema in (("bad", NO_VALUE), ("good", {"type": "object"})):
        params = admitted(vocabulary)
        params.extra_args = own(schema)
        asked = request(params)
        taking.take(asked)
        assert asked.sampling_params is not None
        engine.add(name, asked.sampling_params, [5, 6, stop])
    engine.run()
    assert engine.reasons == {"bad": "error", "good": "stop"}
    assert not engine.outputs["bad"] and engine.outputs["good"][:3] == [5, 6, stop]
