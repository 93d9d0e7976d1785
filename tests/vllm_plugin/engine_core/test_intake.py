"""Requests that reach the engine core with a constraint: of our front end, or in ``vllm_xargs`` past every one of ours."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args
from unittest.mock import Mock

import pytest
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
from tests.vllm_plugin.arriving import NO_VALUE, SLOW, decided, intake_of, one_tool, request, tag_of, taken
from tests.vllm_plugin.faults import Panic
from tests.vllm_plugin.scheduling import ScriptedEngine, admitted, config_of
from tests.vllm_plugin.served import PROCESSOR, asking


def own(schema: Any, **fields: Any) -> dict[str, Any]:
    """A constraint that a client writes itself."""
    return {"constrained_k2": json.dumps({"tools": one_tool(schema, strict=True)} | fields)}


def finished(params: SamplingParams, *output: int) -> Any:
    return SimpleNamespace(request_id="a", sampling_params=params, _output_token_ids=list(output))


@pytest.fixture(scope="module")
def config(model: Path) -> VllmConfig:
    return config_of(model)


def test_calls_without_a_constraint_are_counted(vocabulary: Vocabulary, counters: EngineCounters) -> None:
    """A constraint beside a structural tag holds nothing where the engine core constrains."""
    begin = vocabulary.format.call_begin
    off = asking(extra={"constrained_k2": "off"})
    for params in (asking({}), asking({}, structured_outputs=tag_of()), asking(), off):
        intake_of(vocabulary).end(finished(taken(vocabulary, params), begin, 1, begin))
    intake_of(vocabulary, "logits_processor").end(finished(asking({}), begin))
    assert counters.unconstrained_calls == counters.snapshot()["totals"]["unconstrained_calls"] == 6


@pytest.mark.parametrize("route", get_args(Route))
def test_calls_are_counted_where_nothing_is_adopted(
    vocabulary: Vocabulary, counters: EngineCounters, route: Route
) -> None:
    taking = intake_of(vocabulary, route, adopt="off")
    tagged = tag_of()
    for structured in (tagged, None):
        asked = request(asking(structured_outputs=structured))
        taking.take(asked)
        assert asked.sampling_params is not None and asked.sampling_params.structured_outputs is structured
        taking.end(finished(asked.sampling_params, vocabulary.format.call_begin))
    assert counters.unconstrained_calls == 2 and not decided(counters)


UNCHECKED = [
    (own(SLOW), None, "too long"),
    (own(NO_VALUE), None, "no value satisfies"),
    (own({"type": "object"}, engine="xgrammar"), None, "does not offer"),
]
NEVER = [
    (own({"type": "object"}) | {"constrained_k2_finish_reserve": "x"}, None, "finish_reserve"),
    ({"constrained_k2": 7}, None, "must be a string"),
    ({"constrained_k2": "["}, None, "vllm_xargs.constrained_k2"),
    (own({"type": "object"}), StructuredOutputsParams(regex="a"), "cannot be combined"),
]


@pytest.mark.parametrize(
    ("route", "extra", "structured", "said"),
    [
        *(("structured_output", *row) for row in UNCHECKED),
        *(("logits_processor", *row) for row in UNCHECKED + NEVER),
    ],
)
def test_a_constraint_that_nothing_has_checked_is_checked_before_it_is_scheduled(
    config: VllmConfig, vocabulary: Vocabulary, counters: EngineCounters, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, route: Route, extra: dict[str, Any], structured: Any, said: str,
) -> None:  # fmt: skip
    """The model's grammars have no limit on time, neither in the scheduler's thread nor in the step that samples."""
    taking = intake_of(vocabulary, route)
    if extra == own(SLOW):
        for given in (settings_in(config), taking._settings):
            compiler = byte_compiler.byte_compiler(given, byte_compiler.ENGINE_CORE)
            compiler.forget()
            monkeypatch.setattr(compiler, "_compile_seconds", 0.05)
    params = asking(extra=extra, structured_outputs=structured)
    asked = request(params)
    taking.take(asked)
    got = asked.sampling_params
    assert got is not None and params.structured_outputs is structured  # several requests may share their parameters
    if route == "structured_output":
        assert precompile_of(got) is None
        arrived = SimpleNamespace(request_id="r", sampling_params=got, prompt_token_ids=[5, 6], num_prompt_tokens=2)
        with pytest.raises(ConstrainedK2Error, match=said):
            ConstrainedOutputManager(config)._tool_call_grammar(arrived)
        return
    assert is_refused(got)
    assert counters.ended_early == 1 and not decided(counters)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "a request is refused: r: " in line and said in line


def test_a_panic_while_a_constraint_is_checked_ends_its_request_only(
    vocabulary: Vocabulary, counters: EngineCounters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "admit_in_engine_core", Mock(side_effect=Panic))
    assert is_refused(taken(vocabulary, asking(extra=own({"type": "object"})), route="logits_processor"))
    assert counters.ended_early == 1


@pytest.mark.parametrize("route", get_args(Route))
@pytest.mark.parametrize("strict", [None, False])
def test_a_constraint_that_no_front_end_of_ours_has_checked(
    vocabulary: Vocabulary,
    counters: EngineCounters,
    caplog: pytest.LogCaptureFixture,
    route: Route,
    strict: bool | None,
) -> None:
    """It has the limits that it came with; workers get one that holds: any object where a schema has no grammar."""
    extra = {"constrained_k2_token_limits": {"bad_words": [[7]]}}
    given = asking({"tools": one_tool(NO_VALUE, strict=strict)}, extra, allowed_token_ids=[5])
    got = taken(vocabulary, given, route=route)
    limits = token_limits_in(got.extra_args)
    assert (limits.allowed_token_ids, limits.bad_words) == ((5,), ())  # not what the client put in their place
    assert decided(counters) == {"xargs": 1} and got.allowed_token_ids is None
    assert is_tagged(got) == (route == "structured_output")
    if route == "logits_processor":
        constraint = constraint_in(got.extra_args)
        assert constraint is not None and constraint.tools[0].parameters == {"type": "object"}
        assert "not enforced in a schema: 'f': # (no value satisfies this schema: any JSON object" in caplog.text
        assert got.structured_outputs is None


def test_structured_outputs_of_vllms_stay_beside_a_constraint_that_forbids_calls(
    vocabulary: Vocabulary, counters: EngineCounters
) -> None:
    form = StructuredOutputsParams(regex="a")
    given = asking(extra=own({"type": "object"}, tool_choice="none"), structured_outputs=form)
    assert taken(vocabulary, given, route="logits_processor").structured_outputs is form
    assert not counters.ended_early and not decided(counters)


def test_what_our_front_end_has_checked_is_not_checked_again(
    vocabulary: Vocabulary, counters: EngineCounters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers get it without the tag: to vLLM that would be a structured output."""
    monkeypatch.setattr(intake, "admit_in_engine_core", lambda *_: pytest.fail("compiled again"))
    extra = own({"type": "object"})
    tag(given := asking(extra=extra), [])
    for route in get_args(Route):
        got = taken(vocabulary, given, route=route)
        assert got.extra_args == extra
        assert is_tagged(given)  # several requests may share their parameters
        assert (got.structured_outputs is None) == (route == "logits_processor")
    assert not counters.ended_early and not decided(counters)


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
