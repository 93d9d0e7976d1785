"""The logits processor: the V1 runner's on vLLM's own batch updates, without a model; loading, refusals at the start, its order."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.sample.logits_processor import (
    LogitBiasLogitsProcessor,
    MinTokensLogitsProcessor,
    MoveDirectionality,
    build_logitsprocs,
    validate_logits_processors_parameters,
)
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsProcRequestState,
    build_custom_logits_processors_params_validator,
)

from constrained_k2 import InvalidRequest, ToolCall, Vocabulary, render_tool_calls
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.vllm_plugin import KimiK2LogitsProcessor
from constrained_k2.vllm_plugin.shared import row_plan, row_probe
from constrained_k2.vllm_plugin.shared.counters import EngineCounters
from constrained_k2.vllm_plugin.shared.matcher_factory import MatcherFactory
from constrained_k2.vllm_plugin.worker.logits_processor_v1 import KimiK2LogitsProcessorV1
from constrained_k2.vocabulary.bitmask import allowed_ids
from tests.kit.tools import tool
from tests.kit.turns import call_start
from tests.vllm_plugin.masks import mask_after
from tests.vllm_plugin.served import CPU, EMPTY, NEVER, PROCESSOR, REQUIRED, asking, left, update, vllm_config

BODY = {"tools": [EMPTY]}
NO_VALUE = REQUIRED | {"tools": [tool("f", {"not": {}}, strict=True)]}


@pytest.fixture
def processor(model: Path, vocabulary: Vocabulary) -> KimiK2LogitsProcessor:
    return KimiK2LogitsProcessor(vllm_config(model, vocabulary), CPU, is_pin_memory=False)


def allowed(processor: KimiK2LogitsProcessor, vocabulary: Vocabulary, *rows: int) -> list[set[int]]:
    logits = processor.apply(torch.zeros(8, vocabulary.size))
    assert not logits[logits > NEVER].any()
    return [left(logits[row]) for row in rows]


def expected(vocabulary: Vocabulary, body: Any, ids: list[int], **options: Any) -> set[int]:
    return set(allowed_ids(mask_after(vocabulary, body, ids, **options)).tolist())


def test_every_step_of_a_turn(processor: KimiK2LogitsProcessor, vocabulary: Vocabulary) -> None:
    output: list[int] = []
    processor.update_state(update(added=[(3, asking(BODY), [1], output)]))
    turn = [*vocabulary.encode("Hi"), *render_tool_calls([ToolCall("f", 0, "{ }")], vocabulary)]
    for token in [*turn, vocabulary.format.turn_end]:
        assert allowed(processor, vocabulary, 3) == [expected(vocabulary, BODY, output)]
        output.append(token)
        processor.update_state(None)
    assert allowed(processor, vocabulary, 3) == [set(vocabulary.format.stop_ids)]
    output += [5, 6]  # ignore_eos goes on behind the stop
    assert allowed(processor, vocabulary, 3) == [set(vocabulary.format.stop_ids)]


def test_rows_of_sampled_steps_are_examined(
    model: Path, vocabulary: Vocabulary, counters: EngineCounters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step here; rows may move."""
    monkeypatch.setattr(row_plan, "INTERVAL", 1)
    processor = KimiK2LogitsProcessor(vllm_config(model, vocabulary), CPU, is_pin_memory=False)
    output: list[int] = []
    processor.update_state(update(added=[(3, asking(BODY), [1], output), (0, asking(), [1], [])]))
    turn = [*vocabulary.encode("Hi"), *render_tool_calls([ToolCall("f", 0, "{ }")], vocabulary)]
    chance = torch.Generator().manual_seed(3)
    row, changed = 3, 0
    for number, token in enumerate(turn, 1):
        logits = torch.randn(8, vocabulary.size, generator=chance)
        logits[row, token] += 20 * (number % 2)
        changed += int(logits[row].argmax()) not in expected(vocabulary, BODY, output)
        processor.apply(logits)
        row_probe.row_probe.count()
        assert (counters.examined_rows, counters.changed_rows) == (number, changed)
        output.append(token)
        processor.update_state(update(moved=[(row, 3 - row, MoveDirectionality.SWAP)]))
        row = 3 - row
    assert 0 < changed < len(turn)


def test_rows_move_swap_and_leave(processor: KimiK2LogitsProcessor, vocabulary: Vocabulary) -> None:
    section, call = {vocabulary.format.section_begin}, {vocabulary.format.call_begin}
    everything = set(range(vocabulary.size))
    entered = [(0, asking(REQUIRED), [1], []), (1, asking(REQUIRED), [1], [*section])]
    for changes, rows in (
        ({"added": entered}, {0: section, 1: call}),
        ({"moved": [(0, 1, MoveDirectionality.SWAP)]}, {0: call, 1: section}),
        ({"moved": [(1, 5, MoveDirectionality.UNIDIRECTIONAL)]}, {1: everything, 5: section}),
        ({"removed": [5]}, {0: call, 5: everything}),
        ({"added": [(0, asking(), [1], [])]}, {0: everything}),
    ):
        processor.update_state(update(**changes))
        assert allowed(processor, vocabulary, *rows) == [*rows.values()]


def test_a_resumed_request_is_replayed(processor: KimiK2LogitsProcessor, vocabulary: Vocabulary) -> None:
    output = render_tool_calls([ToolCall("f", 0, "{}")], vocabulary)[:-2]
    processor.update_state(update(added=[(0, asking(REQUIRED), [1], output)]))
    assert allowed(processor, vocabulary, 0) == [expected(vocabulary, REQUIRED, output)]
    del output[-1]  # vLLM takes tokens back when it lost their KV cache
    assert allowed(processor, vocabulary, 0) == [expected(vocabulary, REQUIRED, output)]


def test_a_token_that_is_not_known_yet(processor: KimiK2LogitsProcessor, vocabulary: Vocabulary) -> None:
    output: list[int] = []
    processor.update_state(update(added=[(0, asking(REQUIRED), [1], output)]))
    allowed(processor, vocabulary)
    output.append(-1)  # asynchronous scheduling: the id comes between update_state and apply
    processor.update_state(None)
    output[-1] = vocabulary.format.section_begin
    assert allowed(processor, vocabulary, 0) == [{vocabulary.format.call_begin}]


def test_reasoning_that_the_prompt_opened(processor: KimiK2LogitsProcessor, vocabulary: Vocabulary) -> None:
    """And closed, as K2.5's does without thinking; ``None`` are embeddings."""
    begin, end = vocabulary.format.think_begin, vocabulary.format.think_end
    prompts = ([1, begin], [1, begin, end], None)
    processor.update_state(update(added=[(row, asking(REQUIRED), given, []) for row, given in enumerate(prompts)]))
    thinking, call = expected(vocabulary, REQUIRED, [], in_reasoning=True), {vocabulary.format.section_begin}
    assert allowed(processor, vocabulary, 0, 1, 2) == [thinking, call, call]


@pytest.mark.parametrize(
    ("constraint", "begun"),
    [
        *((text, []) for text in ("{", "[]", '{"tools": 1}', 5, json.dumps(NO_VALUE))),
        (json.dumps(REQUIRED), [65]),  # a token that the grammar forbids
    ],
)
def test_a_bad_request_ends_alone(
    processor: KimiK2LogitsProcessor, vocabulary: Vocabulary, constraint: Any, begun: list[int]
) -> None:
    markers, output = vocabulary.format, list(begun)
    bad = asking(extra={"constrained_k2": constraint})
    processor.update_state(update(added=[(0, bad, [1], output), (1, asking(REQUIRED), [1], [])]))
    # A strict schema without a grammar is found when its tool is called.
    for token in [] if begun else call_start(vocabulary):
        allowed(processor, vocabulary)
        output.append(token)
    assert allowed(processor, vocabulary, 0, 1) == [{markers.turn_end}, {markers.section_begin}]


@pytest.mark.usefixtures("masks_by_llguidance")
def test_a_mask_without_tokens_ends_its_request(
    processor: KimiK2LogitsProcessor, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = LLGuidanceMatcher.fill
    monkeypatch.setattr(LLGuidanceMatcher, "fill", lambda self, row, address=0: fill(self, row, address) or row.fill(0))
    markers, given = vocabulary.format, asking(REQUIRED)
    processor.update_state(update(added=[(0, given, [1], call_start(vocabulary)), (1, given, [1], [])]))
    assert allowed(processor, vocabulary, 0, 1) == [{markers.turn_end}, {markers.section_begin}]


# Loading by vLLM, refusals when a server starts, and the order among vLLM's processors


def states(vocabulary: Vocabulary) -> LogitsProcRequestState:
    lengths = SimpleNamespace(gpu=torch.zeros(4, dtype=torch.int32), np=torch.zeros(4, dtype=torch.int32).numpy())
    tokens = SimpleNamespace(gpu=torch.zeros((4, 16), dtype=torch.int32))
    return LogitsProcRequestState(CPU, 4, vocabulary.size, tokens, lengths, lengths, lengths)


def test_the_v1_runner_loads_it(model: Path, vocabulary: Vocabulary) -> None:
    made = build_logitsprocs(vllm_config(model, vocabulary), CPU, False, False, [PROCESSOR])
    *before, ours = made.non_argmax_invariant
    assert isinstance(ours, KimiK2LogitsProcessorV1)
    # Masks have the last word: processors that forbid or favour tokens come before them.
    assert [type(processor) for processor in before] == [MinTokensLogitsProcessor, LogitBiasLogitsProcessor]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (asking(extra={"constrained_k2": "{"}), "vllm_xargs.constrained_k2: must be JSON"),
        (asking(REQUIRED, structured_outputs=StructuredOutputsParams(regex="a")), "structured_outputs"),
        (asking({"tools": [tool("f", {"not": {}}, strict=True)]}), "no value satisfies"),
    ],
)
def test_both_runners_validate_by_it(bad: SamplingParams, message: str) -> None:
    with pytest.raises(VLLMValidationError, match=message):
        validate_logits_processors_parameters([PROCESSOR], bad)
    with pytest.raises(VLLMValidationError, match=message):
        build_custom_logits_processors_params_validator([PROCESSOR])(bad)


@pytest.mark.parametrize(
    "extra", [None, {}, {"other": 1}, {"constrained_k2": "off"}, {"constrained_k2": json.dumps(REQUIRED)}]
)
def test_validation_leaves_the_rest_as_it_is(extra: Any) -> None:
    params = SamplingParams(extra_args=extra)
    before = params.clone()
    KimiK2LogitsProcessor.validate_params(params)
    assert params == before


WRONG = {"additional_config": {"constrained_k2": {"nope": 1}}}


@pytest.mark.parametrize(
    ("fields", "v2", "message"),
    [
        ({"speculative_config": SimpleNamespace(rejection_sample_method="standard")}, False, "VLLM_USE_V2_MODEL_RUNNER=1"),
        ({"speculative_config": SimpleNamespace(rejection_sample_method="synthetic")}, True, "rejection_sample_method"),
        ({"diffusion_config": SimpleNamespace()}, True, "diffusion"),
        ({"trace_replay": True}, True, "trace replay"),
        (WRONG, True, "additional_config.constrained_k2"),
        (WRONG, False, "additional_config.constrained_k2"),
    ],
)  # fmt: skip
def test_refused_at_the_start(model: Path, vocabulary: Vocabulary, fields: Any, v2: bool, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        KimiK2LogitsProcessor(vllm_config(model, vocabulary, **fields), states(vocabulary) if v2 else CPU)


@pytest.mark.parametrize("v2", [False, True])
def test_a_matcher_that_cannot_be_made_ends_its_request_only(
    model: Path, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, v2: bool
) -> None:
    monkeypatch.setattr(MatcherFactory, "matcher", lambda *_: 1 / 0)
    made: Any = KimiK2LogitsProcessor(vllm_config(model, vocabulary), states(vocabulary) if v2 else CPU)
    if v2:
        assert made.add_request(0, asking(REQUIRED))
        made.apply_staged_writes()
        made.apply(logits := torch.zeros(1, vocabulary.size), SimpleNamespace(idx_mapping_np=np.array([0])))
    else:
        made.update_state(update(added=[(0, asking(REQUIRED), [5], [])]))
        logits = made.apply(torch.zeros(1, vocabulary.size))
    assert left(logits[0]) == {vocabulary.format.turn_end}


@pytest.mark.parametrize("bias", [100.0, -100.0, NEVER])
def test_no_parameter_defeats_or_empties_a_mask(model: Path, vocabulary: Vocabulary, bias: float) -> None:
    markers = vocabulary.format
    made = build_logitsprocs(vllm_config(model, vocabulary), CPU, False, False, [PROCESSOR])
    turn = [*render_tool_calls([ToolCall("f", 0, "{}")], vocabulary), markers.turn_end]
    params = asking(REQUIRED, max_tokens=90, min_tokens=50, stop_token_ids=[*markers.stop_ids, *turn],
                    logit_bias={70: bias} | dict.fromkeys(turn, bias))  # fmt: skip
    output: list[int] = []
    for processor in made.non_argmax_invariant:
        processor.update_state(update(batch_size=1, added=[(0, params, [5], output)]))
    for token in turn:
        logits = torch.randn(1, vocabulary.size)
        logits[0, 70] = 1000
        for processor in made.non_argmax_invariant:
            logits = processor.apply(logits)
        kept = left(logits[0])
        assert kept  # though all that the grammar allows has been forbidden, as its markers always are
        assert kept <= expected(vocabulary, REQUIRED, output)
        assert logits[0, 70] == NEVER
        assert not logits.isnan().any()
        output.append(token)
        for processor in made.non_argmax_invariant:
            processor.update_state(None)
