"""A request's limits on tokens beside tools: through vLLM's own front end to the masks of both routes."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.sample.logits_processor import BatchUpdate
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from constrained_k2 import ToolCallMatcher, ToolCallSpec, Vocabulary, parse_completion
from constrained_k2.turn.thinking_budget import ThinkingBudget
from constrained_k2.turn.token_restriction import TokenRestriction
from constrained_k2.vllm_plugin import KimiK2LogitsProcessor
from constrained_k2.vllm_plugin.shared.constraint import is_tagged
from constrained_k2.vllm_plugin.shared.counters import engine_counters
from constrained_k2.vllm_plugin.shared.token_limits import TokenLimits, token_limits_in
from constrained_k2.vocabulary.bitmask import allowed_ids
from scripts.bundled_samples.ordinary import TOOLS
from tests.vllm_plugin.masks import fresh_compiler, row_of
from tests.vllm_plugin.patched import patch_vllm
from tests.vllm_plugin.scheduling import DRAFTS, ScriptedEngine, config_of, drafter
from tests.vllm_plugin.served import OneRow, vllm_config

SPEC = {"tools": list(TOOLS), "tool_choice": "required", "thinking": True}
PROCESSOR: dict[str, Any] = {"logits_processors": ["constrained_k2.vllm_plugin:KimiK2LogitsProcessor"], "additional_config": {},
             "speculative_config": None}  # fmt: skip
BAD_WORDS = ["a", " the", "functions.get", "Oslo is a city", "1"]

LENGTH = 120

Process = Callable[[SamplingParams], EngineCoreRequest]


@pytest.fixture(params=["structured_output", "logits_processor"])
def process(request: pytest.FixtureRequest, model: Path) -> Process:
    """vLLM's own front end, as it sends requests to the engine core, on each route."""
    patch_vllm()
    config = config_of(model, **(PROCESSOR if request.param == "logits_processor" else {}))
    processor = InputProcessor(config)

    def processed(params: SamplingParams) -> EngineCoreRequest:
        return processor.process_inputs("id", {"prompt_token_ids": [1, 2]}, params, ("generate",))

    return processed


def asking(spec: Any = SPEC, **fields: Any) -> SamplingParams:
    extra = {"constrained_k2": json.dumps(spec), "other": 1} | fields.pop("extra_args", {})
    return SamplingParams(**({"extra_args": extra, "max_tokens": 200} | fields))


def test_vllm_applies_none_of_them_beside_tools(process: Process) -> None:
    """Not even the thinking budget, which vLLM refuses on a server without a reasoning parser."""
    given = asking(thinking_token_budget=7, allowed_token_ids=[5, 9, 5], bad_words=BAD_WORDS)
    sent = process(given).sampling_params
    assert sent is not None and sent.extra_args is not None
    assert sent.thinking_token_budget is sent.allowed_token_ids is None
    assert not sent.bad_words_token_ids and not sent.bad_words
    limits = token_limits_in(sent.extra_args)
    assert (limits.thinking_token_budget, sorted(limits.allowed_token_ids or ())) == (7, [5, 9])
    assert len(limits.bad_words) >= len(BAD_WORDS)
    assert sent.extra_args["other"] == 1
    # The caller's own are left alone: several requests may share them.
    assert (given.thinking_token_budget, given.allowed_token_ids, given.bad_words) == (7, [5, 9, 5], BAD_WORDS)
    assert given.extra_args == {"constrained_k2": json.dumps(SPEC), "other": 1}


def test_limits_survive_the_way_to_the_engine_core(process: Process) -> None:
    sent = process(asking(thinking_token_budget=1 << 70, allowed_token_ids=[5, 9], bad_words=BAD_WORDS))
    received = MsgpackDecoder(EngineCoreRequest).decode(MsgpackEncoder().encode(sent)).sampling_params
    assert token_limits_in(received.extra_args) == token_limits_in(sent.sampling_params.extra_args)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids is not None and empty"),
        ({"allowed_token_ids": [-1]}, "out-of-vocab"),
        ({"allowed_token_ids": [10**9]}, "out-of-vocab"),
        ({"bad_words": [str(number) for number in range(1000)]}, "Too many bad words"),
        ({"bad_words": [""]}, "empty string"),
    ],
)
def test_vllm_still_checks_them(process: Process, fields: Any, message: str) -> None:
    with pytest.raises(VLLMValidationError, match=message):
        process(asking(**fields))


FORGED = {"constrained_k2_token_limits": {"allowed_token_ids": "all", "thinking_token_budget": -5}}


def test_no_client_can_forge_them(process: Process) -> None:
    for fields in ({}, {"bad_words": ["a"]}, {"thinking_token_budget": 3}):
        sent = process(asking(extra_args=FORGED, **fields)).sampling_params
        assert sent is not None
        limits = token_limits_in(sent.extra_args)
        assert limits.allowed_token_ids is None
        assert limits.thinking_token_budget == fields.get("thinking_token_budget")
    sent = process(asking(SPEC | {"tool_choice": "none"}, extra_args=FORGED)).sampling_params
    assert sent is not None
    assert token_limits_in(sent.extra_args) == TokenLimits()


@pytest.mark.parametrize("spec", [SPEC | {"tool_choice": "none"}, None], ids=["none", "no tools"])
def test_where_no_tool_may_be_called_they_stay_vllms(process: Process, spec: Any) -> None:
    given = asking(spec, allowed_token_ids=[5, 9], bad_words=["a"])
    if spec is None:
        given.extra_args = None
    sent = process(given).sampling_params
    assert sent is not None
    assert sent.allowed_token_ids == [5, 9] and sent.bad_words_token_ids
    given.thinking_token_budget = 5
    with pytest.raises(VLLMValidationError, match="reasoning_config"):
        process(given)


@pytest.mark.parametrize("process", ["structured_output"], indirect=True)
def test_the_request_is_still_tagged(process: Process) -> None:
    assert is_tagged(process(asking(bad_words=["a"], thinking_token_budget=0)).sampling_params)


# The masks


def limited(vocabulary: Vocabulary, params: SamplingParams) -> ToolCallMatcher:
    """A matcher under the limits of processed parameters, that nothing has happened to."""
    matcher = fresh_compiler(vocabulary).compile(ToolCallSpec.from_openai(SPEC)).matcher(in_reasoning=True)
    limits = token_limits_in(params.extra_args)
    assert limits.thinking_token_budget is not None
    ThinkingBudget(vocabulary).apply(matcher, limits.thinking_token_budget)
    matcher.limits = TokenRestriction(
        vocabulary.size, limits.allowed_token_ids, limits.bad_words, on_ignored=lambda: None
    )
    return matcher


def turn(vocabulary: Vocabulary, params: SamplingParams, seed: int) -> list[int]:
    matcher, chance = limited(vocabulary, params), random.Random(seed)
    while not matcher.is_terminated() and matcher.num_tokens < LENGTH + DRAFTS:
        assert matcher.accept_tokens([int(chance.choice(allowed_ids(row_of(matcher))))])
    return list(matcher.token_ids())


def some(vocabulary: Vocabulary, seed: int) -> dict[str, Any]:
    """Limits that leave a token now and then, of every kind."""
    chance = random.Random(seed)
    allowed = [chance.sample(range(vocabulary.size), 400), None, [5]][seed % 3]
    return {"allowed_token_ids": allowed, "bad_words": BAD_WORDS[: seed % 6], "thinking_token_budget": seed}


def stripped(params: SamplingParams | None, vocabulary: Vocabulary) -> SamplingParams:
    assert params is not None
    params.update_from_generation_config({"eos_token_id": list(vocabulary.format.stop_ids)}, vocabulary.format.turn_end)
    return params


@pytest.mark.parametrize("process", ["structured_output"], indirect=True)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_engine_cores_masks_keep_them_behind_drafts_too(
    process: Process, model: Path, vocabulary: Vocabulary, asynchronous: bool
) -> None:
    engine = ScriptedEngine(config_of(model), asynchronous=asynchronous)
    sent = {
        str(seed): stripped(process(asking(**some(vocabulary, seed))).sampling_params, vocabulary) for seed in range(6)
    }
    scripts = {name: turn(vocabulary, params, int(name)) for name, params in sent.items()}
    ignored = engine_counters.ignored_limits
    for name, params in sent.items():
        params.max_tokens = LENGTH
        engine.add(name, params, scripts[name], prompt=[1, vocabulary.format.think_begin])
    engine.run(drafter(scripts, random.Random(1), vocabulary))
    for name, ids in scripts.items():
        matcher = limited(vocabulary, sent[name])
        for at, token in enumerate(ids[:LENGTH]):
            assert np.array_equal(engine.rows[name][at], row_of(matcher)), (name, at)
            assert matcher.accept_tokens([token])
    assert engine_counters.ignored_limits > ignored
    engine.manager.clear_backend()


@pytest.mark.parametrize("process", ["logits_processor"], indirect=True)
def test_the_processors_masks_keep_them(process: Process, model: Path, vocabulary: Vocabulary) -> None:
    for seed in range(6):
        params = stripped(process(asking(**some(vocabulary, seed))).sampling_params, vocabulary)
        matcher, row = (
            limited(vocabulary, params),
            OneRow(model, vocabulary, params, [1, vocabulary.format.think_begin]),
        )
        for token in turn(vocabulary, params, seed):
            assert row.allowed() == set(allowed_ids(row_of(matcher)).tolist())
            assert matcher.accept_tokens([token])
            row.output.append(token)


def test_a_limits_masks_take_no_place_among_the_constants(model: Path, vocabulary: Vocabulary) -> None:
    """Else requests with limits of their own would fill the device's few places, and be kept for ever."""
    made: Any = KimiK2LogitsProcessor(vllm_config(model, vocabulary), torch.device("cpu"), is_pin_memory=False)
    for token in range(70):
        extra = {"constrained_k2": json.dumps(SPEC), "constrained_k2_token_limits": {"bad_words": [[token]]}}
        request = (0, SamplingParams(extra_args=extra), [1], list[int]())
        made.update_state(BatchUpdate(1, removed=[], added=[request], moved=[]))
        assert made.apply(torch.zeros(1, vocabulary.size))[0, token] == -torch.inf
    assert not made._masks._constants._rows


def test_a_bias_of_minus_100_leaves_every_row_something(model: Path, vocabulary: Vocabulary) -> None:
    """It is finite: where the mask allows one token alone, that token is written whatever its bias."""
    made = KimiK2LogitsProcessor(vllm_config(model, vocabulary), torch.device("cpu"), is_pin_memory=False)
    markers = vocabulary.format
    params = asking(SPEC | {"thinking": False}, logit_bias={markers.section_begin: -100.0})
    made.update_state(BatchUpdate(1, removed=[], added=[(0, params, [1], [])], moved=[]))
    logits = torch.zeros(1, vocabulary.size)
    logits[0, markers.section_begin] -= 100.0
    assert made.apply(logits)[0].argmax() == markers.section_begin
    assert logits[0, markers.section_begin] == -100.0


def test_a_turn_under_limits_has_a_valid_call(process: Process, vocabulary: Vocabulary) -> None:
    """With every token forbidden that can be, the mask alone writes."""
    params = process(asking(allowed_token_ids=[5], bad_words=["5"], thinking_token_budget=2)).sampling_params
    assert params is not None
    ids = turn(vocabulary, params, 3)
    assert ids.index(vocabulary.format.think_end) <= 2 or vocabulary.format.section_begin in ids[:3]
    completion = parse_completion(ids, vocabulary, in_reasoning=True)
    assert completion.tool_calls or completion.cut_calls
