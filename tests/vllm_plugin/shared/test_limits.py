"""The finish reserve and the limits on tokens of a request with tools: through vLLM's own front end to the masks of both routes."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.core.sched.utils import check_stop
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.request import Request
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from constrained_k2 import ToolCallMatcher, ToolCallSpec, Vocabulary, parse_completion
from constrained_k2.turn.finish_budget import FinishBudget
from constrained_k2.turn.thinking_budget import ThinkingBudget
from constrained_k2.turn.token_restriction import TokenRestriction
from constrained_k2.vllm_plugin import KimiK2LogitsProcessor
from constrained_k2.vllm_plugin.api_server.admission import check_params
from constrained_k2.vllm_plugin.shared.constraint import is_tagged
from constrained_k2.vllm_plugin.shared.counters import engine_counters
from constrained_k2.vllm_plugin.shared.matcher_factory import PROMPT_END, MatcherFactory, PromptInfo
from constrained_k2.vllm_plugin.shared.token_limits import TokenLimits, token_limits_in
from constrained_k2.vllm_plugin.worker.logits_processor_v2 import _Entering
from scripts.bundled_samples.ordinary import TOOLS
from tests.kit.walks import ids_of, row_of
from tests.vllm_plugin.masks import fresh_compiler
from tests.vllm_plugin.patched import patch_vllm
from tests.vllm_plugin.scheduling import DRAFTS, ScriptedEngine, config_of, drafter
from tests.vllm_plugin.served import CPU, NEVER, PROCESSOR, OneRow, asking, update, vllm_config

RESERVED = {"tools": list(TOOLS), "tool_choice": "required"}
SPEC = RESERVED | {"thinking": True}
NO_CALLS = SPEC | {"tool_choice": "none"}
ON_WORKERS: dict[str, Any] = {"logits_processors": [PROCESSOR], "additional_config": {}, "speculative_config": None}
BAD_WORDS = ["a", " the", "functions.get", "Oslo is a city", "1"]
LENGTH, RESERVE = 130, 96

Process = Callable[[SamplingParams], SamplingParams]


@pytest.fixture(params=["structured_output", "logits_processor"])
def process(request: pytest.FixtureRequest, model: Path) -> Process:
    """vLLM's own front end, as it sends parameters to the engine core, on each route."""
    patch_vllm()
    processor = InputProcessor(config_of(model, **(ON_WORKERS if request.param == "logits_processor" else {})))

    def processed(params: SamplingParams) -> SamplingParams:
        sent = processor.process_inputs("id", {"prompt_token_ids": [1, 2]}, params, ("generate",)).sampling_params
        assert sent is not None
        return sent

    return processed


def limiting(spec: Any = SPEC, extra: Any = None, **fields: Any) -> SamplingParams:
    return asking(spec, {"other": 1} | (extra or {}), **({"max_tokens": 200} | fields))


def reserved(reserve: Any, spec: Any = RESERVED, **fields: Any) -> SamplingParams:
    return asking(spec, {} if reserve is None else {"constrained_k2_finish_reserve": reserve}, **fields)


@pytest.mark.parametrize("value", [-1, 4097, "64", 1.5, [64], {}])
def test_a_reserve_that_is_none_is_refused(value: Any) -> None:
    said = r"vllm_xargs.constrained_k2_finish_reserve: must be a whole number from 0 to 4096"
    with pytest.raises(ValueError, match=said):
        check_params(reserved(value))
    assert check_params(reserved(64)) is not None


@pytest.mark.parametrize(
    ("reserve", "default", "max_tokens", "prompt", "start"),
    [
        (None, 0, 40, 10, None),
        (0, 20, 40, 10, None),
        (30, 0, 40, 10, 10),
        (None, 30, 40, 10, 10),
        (30, 20, 40, 10, 10),
        (30, 0, 40, 4066, 0),  # the model's length leaves 30
        (30, 0, 40, 4061, 5),
        (30, 0, 20, 10, 0),
    ],
)
def test_where_closing_begins(
    model: Path, vocabulary: Vocabulary, reserve: Any, default: int, max_tokens: int, prompt: int, start: int | None
) -> None:
    ours = {"constrained_k2": {"finish_reserve": default}}
    maker = MatcherFactory(vllm_config(model, vocabulary, additional_config=ours))
    params = reserved(reserve, SPEC, max_tokens=max_tokens)
    compiled = maker.compile(params)
    assert compiled is not None
    matcher = maker.matcher(compiled, PromptInfo(prompt, [vocabulary.format.think_begin]), params)
    (word,) = vocabulary.encode("a")
    narrowed = []
    for _ in range(40):
        narrowed.append(len(ids_of(matcher)) == 2)
        assert matcher.accept_tokens([word])
    assert narrowed == [start is not None and at >= start for at in range(40)]


def test_both_of_vllms_limits_are_those_that_are_reckoned_with() -> None:
    """``check_stop`` ends a request by the model's length or by ``max_tokens``, counted as we count them."""
    for max_tokens, max_model_len, length in ((3, 100, 3), (100, 8, 4), (4, 8, 4)):
        request = Request("a", [1, 2, 3, 4], SamplingParams(max_tokens=max_tokens), None)
        request.append_output_token_ids([5] * (length - 1))
        assert not check_stop(request, max_model_len)
        request.append_output_token_ids(5)
        assert check_stop(request, max_model_len)


def test_beside_tools_the_engine_core_gets_them_in_vllms_place(process: Process) -> None:
    """Not even the thinking budget, which vLLM refuses on a server without a reasoning parser."""
    given = limiting(thinking_token_budget=1 << 70, allowed_token_ids=[5, 9, 5], bad_words=BAD_WORDS)
    sent = process(given)
    assert sent.extra_args is not None and is_tagged(sent)
    assert sent.thinking_token_budget is sent.allowed_token_ids is None
    assert not sent.bad_words_token_ids and not sent.bad_words
    on_the_way = EngineCoreRequest("a", [1], None, sent, None, 0.0, None, None, None)
    received = MsgpackDecoder(EngineCoreRequest).decode(MsgpackEncoder().encode(on_the_way)).sampling_params
    limits = token_limits_in(received.extra_args)
    assert limits == token_limits_in(sent.extra_args)
    assert (limits.thinking_token_budget, sorted(limits.allowed_token_ids or ())) == (
        1 << 31,
        [5, 9],
    )  # more than any length
    assert len(limits.bad_words) >= len(BAD_WORDS)
    assert sent.extra_args["other"] == 1
    # The caller's own are left alone: several requests may share them.
    assert (given.thinking_token_budget, given.allowed_token_ids, given.bad_words) == (1 << 70, [5, 9, 5], BAD_WORDS)
    assert given.extra_args == {"constrained_k2": json.dumps(SPEC), "other": 1}


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
        process(limiting(**fields))


def test_no_client_can_forge_them(process: Process) -> None:
    forged = {"constrained_k2_token_limits": {"allowed_token_ids": "all", "thinking_token_budget": -5}}
    for fields in ({}, {"bad_words": ["a"]}, {"thinking_token_budget": 3}):
        limits = token_limits_in(process(limiting(extra=forged, **fields)).extra_args)
        assert limits.allowed_token_ids is None
        assert limits.thinking_token_budget == fields.get("thinking_token_budget")
    assert token_limits_in(process(limiting(NO_CALLS, forged)).extra_args) == TokenLimits()


@pytest.mark.parametrize("spec", [NO_CALLS, None], ids=["none", "no tools"])
def test_where_no_tool_may_be_called_they_stay_vllms(process: Process, spec: Any) -> None:
    given = limiting(spec, allowed_token_ids=[5, 9], bad_words=["a"])
    if spec is None:
        given.extra_args = None
    sent = process(given)
    assert sent.allowed_token_ids == [5, 9] and sent.bad_words_token_ids
    given.thinking_token_budget = 5
    with pytest.raises(VLLMValidationError, match="reasoning_config"):
        process(given)


def given(kind: str, seed: int, process: Process, vocabulary: Vocabulary) -> tuple[SamplingParams, list[int]]:
    """Processed parameters, and their prompt; the limits on tokens are of every kind, and leave a token now and then."""
    chance, markers = random.Random(seed), vocabulary.format
    if kind == "reserve":
        params, prompt = process(reserved(RESERVE, max_tokens=LENGTH)), [1, 2]
    else:
        allowed = [chance.sample(range(vocabulary.size), 400), None, [5]][seed % 3]
        words = BAD_WORDS[: seed % 6]
        fields = {"allowed_token_ids": allowed, "bad_words": words, "thinking_token_budget": seed, "max_tokens": LENGTH}
        params, prompt = process(limiting(**fields)), [1, markers.think_begin]
    params.update_from_generation_config({"eos_token_id": list(markers.stop_ids)}, markers.turn_end)
    return params, prompt


def limited(vocabulary: Vocabulary, params: SamplingParams) -> ToolCallMatcher:
    """A matcher under the limits of processed parameters, that nothing has happened to."""
    extra = params.extra_args or {}
    reserve, limits = extra.get("constrained_k2_finish_reserve"), token_limits_in(extra)
    compiled = fresh_compiler(vocabulary).compile(ToolCallSpec.from_openai(RESERVED if reserve else SPEC))
    matcher = compiled.matcher(in_reasoning=not reserve)
    if reserve:
        FinishBudget(vocabulary).apply(matcher, LENGTH, reserve)
        return matcher
    assert limits.thinking_token_budget is not None
    ThinkingBudget(vocabulary).apply(matcher, limits.thinking_token_budget)
    matcher.limits = TokenRestriction(
        vocabulary.size, limits.allowed_token_ids, limits.bad_words, on_ignored=lambda: None
    )
    return matcher


def turn(vocabulary: Vocabulary, params: SamplingParams, seed: int) -> list[int]:
    """The turn of a random model under the limits; the finish reserve ends it in time."""
    matcher, chance = limited(vocabulary, params), random.Random(seed)
    while not matcher.is_terminated() and matcher.num_tokens < LENGTH + DRAFTS:
        assert matcher.accept_tokens([chance.choice(ids_of(matcher))])
    return list(matcher.token_ids())


@pytest.mark.parametrize("process", ["structured_output"], indirect=True)
@pytest.mark.parametrize("kind", ["reserve", "limits"])
def test_the_engine_cores_masks_keep_them_behind_drafts_too(
    process: Process, model: Path, vocabulary: Vocabulary, asynchronous: bool, kind: str
) -> None:
    engine = ScriptedEngine(config_of(model), asynchronous=asynchronous)
    sent = {str(seed): given(kind, seed, process, vocabulary) for seed in range(6)}
    ignored = engine_counters.ignored_limits
    for name, (params, prompt) in sent.items():
        engine.add(name, params, turn(vocabulary, params, int(name)), prompt)
    engine.run(drafter(engine.scripts, random.Random(1), vocabulary))
    for name, ids in engine.scripts.items():
        assert kind == "limits" or (engine.reasons[name] == "stop" and len(ids) <= LENGTH)
        assert engine.outputs[name][: len(ids)][:LENGTH] == ids[:LENGTH]
        matcher = limited(vocabulary, sent[name][0])
        for at, token in enumerate(ids[:LENGTH]):
            assert np.array_equal(engine.rows[name][at], row_of(matcher)), (name, at)
            assert matcher.accept_tokens([token])
    assert (engine_counters.ignored_limits > ignored) == (kind == "limits")
    engine.manager.clear_backend()


@pytest.mark.parametrize("process", ["logits_processor"], indirect=True)
@pytest.mark.parametrize("kind", ["reserve", "limits"])
def test_the_processors_masks_keep_them(process: Process, model: Path, vocabulary: Vocabulary, kind: str) -> None:
    for seed in range(6):
        params, prompt = given(kind, seed, process, vocabulary)
        matcher, row = limited(vocabulary, params), OneRow(model, vocabulary, params, prompt)
        for token in turn(vocabulary, params, seed):
            assert row.allowed() == set(ids_of(matcher))
            assert matcher.accept_tokens([token])
            row.output.append(token)
        assert kind == "limits" or parse_completion(row.output, vocabulary).tool_calls


@pytest.mark.parametrize("process", ["logits_processor"], indirect=True)
def test_a_request_that_comes_back_to_the_v2_runner_goes_on_closing(
    process: Process, model: Path, vocabulary: Vocabulary
) -> None:
    maker = MatcherFactory(vllm_config(model, vocabulary))
    params, _ = given("reserve", 3, process, vocabulary)
    ids = turn(vocabulary, params, 3)
    compiled = maker.compile(params)
    assert compiled is not None
    for prompt_end in (0, 5, 100):
        for written in (0, 20, LENGTH - RESERVE + 1):
            entering = _Entering(compiled, params, prompt_end, prompt_end + written)
            prompt = [1] * min(prompt_end, PROMPT_END)  # its last tokens, as the processor fetches them
            entering.ids = torch.tensor([*prompt, *ids[:written]], dtype=torch.int64)
            matcher, fresh = entering.start(maker).matcher, limited(vocabulary, params)
            assert matcher is not None and matcher.num_tokens == written
            assert fresh.accept_tokens(ids[:written])
            assert np.array_equal(row_of(matcher), row_of(fresh))


def test_a_limits_masks_take_no_place_among_the_constants(model: Path, vocabulary: Vocabulary) -> None:
    """Else requests with limits of their own would fill the device's few slots, and be kept for ever."""
    made: Any = KimiK2LogitsProcessor(vllm_config(model, vocabulary), CPU, is_pin_memory=False)
    for token in range(70):
        params = asking(SPEC, {"constrained_k2_token_limits": {"bad_words": [[token]]}})
        made.update_state(update(added=[(0, params, [1], list[int]())]))
        assert made.apply(torch.zeros(1, vocabulary.size))[0, token] == NEVER
    assert not made._masks._constants._rows
