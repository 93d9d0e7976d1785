"""The finish reserve of a request, on its way from ``vllm_xargs`` and the operator to the masks of both routes."""

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from vllm import SamplingParams
from vllm.v1.core.sched.utils import check_stop
from vllm.v1.request import Request

from constrained_k2 import InvalidRequest, ToolCallSpec, Vocabulary, parse_completion
from constrained_k2.turn.finish_budget import FinishBudget
from constrained_k2.vllm_plugin.api_server.admission import check_params
from constrained_k2.vllm_plugin.shared import settings
from constrained_k2.vllm_plugin.shared.matcher_factory import PROMPT_END, MatcherFactory, PromptInfo
from constrained_k2.vllm_plugin.shared.settings import settings_in
from constrained_k2.vllm_plugin.worker.logits_processor_v2 import _Entering
from constrained_k2.vocabulary.bitmask import allowed_ids
from scripts.bundled_samples.ordinary import TOOLS
from tests.vllm_plugin.masks import fresh_compiler, row_of
from tests.vllm_plugin.scheduling import ScriptedEngine, admitted, config_of, drafter
from tests.vllm_plugin.served import OneRow, vllm_config

SPEC = {"tools": list(TOOLS), "tool_choice": "required"}
BUDGET, RESERVE = 130, 96


@pytest.fixture(scope="module")
def closing(vocabulary: Vocabulary) -> FinishBudget:
    return FinishBudget(vocabulary)


def asking(reserve: Any, spec: Any = SPEC, **fields: Any) -> SamplingParams:
    extra = {"constrained_k2": json.dumps(spec)} | (
        {} if reserve is None else {"constrained_k2_finish_reserve": reserve}
    )
    return SamplingParams(extra_args=extra, **fields)


def closed(vocabulary: Vocabulary, closing: FinishBudget, ids: list[int], budget: int = BUDGET) -> np.ndarray:
    """The mask behind these tokens of a turn that nothing but its tokens has happened to."""
    matcher = fresh_compiler(vocabulary).compile(ToolCallSpec.from_openai(SPEC)).matcher()
    closing.apply(matcher, budget, RESERVE)
    assert matcher.accept_tokens(ids)
    return row_of(matcher)


def turn(vocabulary: Vocabulary, closing: FinishBudget, seed: int) -> list[int]:
    """Return the turn that a random model writes under a finish budget."""
    matcher = fresh_compiler(vocabulary).compile(ToolCallSpec.from_openai(SPEC)).matcher()
    closing.apply(matcher, BUDGET, RESERVE)
    chance, ids = random.Random(seed), list[int]()
    while not matcher.is_terminated():
        ids.append(int(chance.choice(allowed_ids(row_of(matcher)))))
        assert matcher.accept_tokens(ids[-1:])
    return ids


@pytest.mark.parametrize("value", [-1, 4097, "64", 1.5, [64], {}])
def test_a_reserve_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(
        ValueError, match=r"vllm_xargs.constrained_k2_finish_reserve: must be a whole number from 0 to 4096"
    ):
        check_params(asking(value))
    assert check_params(asking(64)) is not None


@pytest.mark.parametrize("value", [-1, 4097, "64", True])
def test_an_operators_reserve_that_is_none_is_refused(value: Any) -> None:
    config = SimpleNamespace(additional_config={"constrained_k2": {"finish_reserve": value}})
    with pytest.raises(
        InvalidRequest, match=r"additional_config.constrained_k2.finish_reserve: must be a whole number"
    ):
        settings_in(config)
    config.additional_config = {"constrained_k2": {"finish_reserve": 64}}
    assert settings_in(config).finish_reserve == 64


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
    maker = MatcherFactory(
        vllm_config(model, vocabulary, additional_config={"constrained_k2": {"finish_reserve": default}})
    )
    params = asking(reserve, SPEC | {"thinking": True}, max_tokens=max_tokens)
    compiled = maker.compile(params)
    assert compiled is not None
    matcher = maker.matcher(compiled, PromptInfo(prompt, [vocabulary.format.think_begin]), params)
    (word,) = vocabulary.encode("a")
    narrowed = []
    for _ in range(40):
        narrowed.append(len(allowed_ids(row_of(matcher))) == 2)
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


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_backends_masks_are_narrowed_behind_drafts_too(
    model: Path, vocabulary: Vocabulary, closing: FinishBudget, asynchronous: bool
) -> None:
    engine = ScriptedEngine(config_of(model), asynchronous=asynchronous)
    scripts = {str(seed): turn(vocabulary, closing, seed) for seed in range(6)}
    for name, ids in scripts.items():
        params = admitted(vocabulary, SPEC, max_tokens=BUDGET)
        assert params.extra_args is not None
        params.extra_args["constrained_k2_finish_reserve"] = RESERVE
        engine.add(name, params, ids)
    engine.run(drafter(scripts, random.Random(1), vocabulary))
    for name, ids in scripts.items():
        assert engine.reasons[name] == "stop"
        assert engine.outputs[name][: len(ids)] == ids
        for at in range(len(ids)):
            assert np.array_equal(engine.rows[name][at], closed(vocabulary, closing, ids[:at])), (name, at)
    engine.manager.clear_backend()


def test_the_processors_masks_are_narrowed(model: Path, vocabulary: Vocabulary, closing: FinishBudget) -> None:
    ids = turn(vocabulary, closing, 7)
    row = OneRow(model, vocabulary, asking(RESERVE, max_tokens=BUDGET), [1, 2])
    for token in ids:
        assert row.allowed() == set(allowed_ids(closed(vocabulary, closing, row.output)).tolist())
        row.output.append(token)
    assert parse_completion(ids, vocabulary).tool_calls


def test_a_request_that_comes_back_to_the_v2_runner_goes_on_closing(
    model: Path, vocabulary: Vocabulary, closing: FinishBudget
) -> None:
    maker = MatcherFactory(vllm_config(model, vocabulary))
    ids = turn(vocabulary, closing, 3)
    params = asking(RESERVE, max_tokens=BUDGET)
    compiled = maker.compile(params)
    assert compiled is not None
    for prompt_end in (0, 5, 100):
        for written in (0, 20, BUDGET - RESERVE + 1):
            entering = _Entering(compiled, params, prompt_end, prompt_end + written)
            prompt = [1] * min(prompt_end, PROMPT_END)  # its last tokens, as the processor fetches them
            entering.ids = torch.tensor([*prompt, *ids[:written]], dtype=torch.int64)
            matcher = entering.start(maker).matcher
            assert matcher is not None and matcher.num_tokens == written
            assert np.array_equal(row_of(matcher), closed(vocabulary, closing, ids[:written]))


def test_every_setting_and_request_field_is_in_a_table() -> None:
    assert {row.name for row in settings.SETTINGS} == set(settings.Settings.__struct_fields__)
    for row in (*settings.SETTINGS, *settings.REQUEST_FIELDS):
        assert row.expected and row.meaning
    for row in settings.SETTINGS:
        config = SimpleNamespace(additional_config={"constrained_k2": {row.name: object()}})
        with pytest.raises(InvalidRequest, match=row.name):
            settings_in(config)
