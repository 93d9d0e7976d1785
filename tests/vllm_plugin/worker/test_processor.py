"""The V1 logits processor on vLLM's own batch updates, without a model."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

from constrained_k2 import ToolCall, Vocabulary, render_tool_calls
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.vllm_plugin import KimiK2LogitsProcessor
from constrained_k2.vllm_plugin.shared import row_plan
from constrained_k2.vllm_plugin.shared.counters import EngineCounters
from constrained_k2.vllm_plugin.shared.row_probe import RowProbe
from constrained_k2.vllm_plugin.worker import host_masks
from constrained_k2.vocabulary.bitmask import allowed_ids
from tests.vllm_plugin.masks import mask_after
from tests.vllm_plugin.served import vllm_config

BODY = {
    "tools": [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "additionalProperties": False}}}
    ]
}
REQUIRED = BODY | {"tool_choice": "required"}


@pytest.fixture
def processor(model: Path, vocabulary: Vocabulary) -> KimiK2LogitsProcessor:
    config = vllm_config(model, vocabulary)
    return KimiK2LogitsProcessor(config, torch.device("cpu"), is_pin_memory=False)


def params(body: Any = None) -> SamplingParams:
    return SamplingParams(extra_args=None if body is None else {"constrained_k2": json.dumps(body)})


def update(**changes: Any) -> BatchUpdate:
    return BatchUpdate(**({"batch_size": 8, "removed": [], "added": [], "moved": []} | changes))


def allowed(processor: KimiK2LogitsProcessor, vocabulary: Vocabulary, row: int, rows: int = 8) -> set[int]:
    logits = processor.apply(torch.zeros(rows, vocabulary.size))
    return set(torch.nonzero(logits[row] == 0).flatten().tolist())


def expected(vocabulary: Vocabulary, body: Any, ids: list[int], **options: Any) -> set[int]:
    return set(allowed_ids(mask_after(vocabulary, body, ids, **options)).tolist())


def test_every_step_of_a_turn(processor: KimiK2LogitsProcessor, vocabulary: Vocabulary) -> None:
    output: list[int] = []
    processor.update_state(update(added=[(3, params(BODY), [1], output)]))
    turn = [*vocabulary.encode("Hi"), *render_tool_calls([ToolCall("f", 0, "{ }")] * 1, vocabulary)]
    for token in [*turn, vocabulary.format.turn_end]:
        assert allowed(processor, vocabulary, 3) == expected(vocabulary, BODY, output)
        output.append(token)
        processor.update_state(None)
    assert allowed(processor, vocabulary, 3) == set(vocabulary.format.stop_ids)
    output += [5, 6]  # ignore_eos goes on behind the stop
    assert allowed(processor, vocabulary, 3) == set(vocabulary.format.stop_ids)


def test_rows_of_sampled_steps_are_examined(
    model: Path, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step here; rows may move."""
    monkeypatch.setattr(row_plan, "INTERVAL", 1)
    processor = KimiK2LogitsProcessor(vllm_config(model, vocabulary), torch.device("cpu"), is_pin_memory=False)
    monkeypatch.setattr(host_masks, "row_probe", probe := RowProbe(counters := EngineCounters()))
    output: list[int] = []
    processor.update_state(update(added=[(3, params(BODY), [1], output), (0, params(), [1], [])]))
    turn = [*vocabulary.encode("Hi"), *render_tool_calls([ToolCall("f", 0, "{ }")], vocabulary)]
    chance = torch.Generator().manual_seed(3)
    row, changed = 3, 0
    for number, token in enumerate(turn, 1):
        logits = torch.randn(8, vocabulary.size, generator=chance)
        logits[row, token] += 20 * (number % 2)
        changed += int(logits[row].argmax()) not in expected(vocabulary, BODY, output)
        processor.apply(logits)
        probe.count()
        assert (counters.examined_rows, counters.changed_rows) == (number, changed)
        output.append(token)
        processor.update_state(update(moved=[(row, 3 - row, MoveDirectionality.SWAP)]))
        row = 3 - row
    assert 0 < changed < len(turn)


def test_rows_of_others_are_not_written(processor: KimiK2LogitsProcessor, vocabulary: Vocabulary) -> None:
    processor.update_state(
        update(added=[(0, params(), [1], []), (1, params(REQUIRED), [1], []), (2, params(), [1], [])])
    )
    logits = torch.randn(3, vocabulary.size)
    before = logits.clone()
    processor.apply(logits)
    assert torch.equal(logits[[0, 2]], before[[0, 2]])
    assert not torch.equal(logits[1], before[1])


def test_rows_move_swap_and_leave(processor: KimiK2LogitsProcessor, vocabulary: Vocabulary) -> None:
    markers = vocabulary.format
    late: list[int] = [markers.section_begin]
    processor.update_state(update(added=[(0, params(REQUIRED), [1], []), (1, params(REQUIRED), [1], late)]))
    everything = set(range(vocabulary.size))
    assert allowed(processor, vocabulary, 0) == {markers.section_begin}
    assert allowed(processor, vocabulary, 1) == {markers.call_begin}
    processor.update_state(update(moved=[(0, 1, MoveDirectionality.SWAP)]))
    assert allowed(processor, vocabulary, 0) == {markers.call_begin}
    assert allowed(processor, vocabulary, 1) == {markers.section_begin}
    processor.update_state(update(moved=[(1, 5, MoveDirectionality.UNIDIRECTIONAL)]))
    assert allowed(processor, vocabulary, 1) == everything
    assert allowed(processor, vocabulary, 5) == {markers.section_begin}
    processor.update_state(update(removed=[5]))
    assert allowed(processor, vocabulary, 5) == everything
    processor.update_state(update(added=[(0, params(), [1], [])]))
    assert allowed(processor, vocabulary, 0) == everything


def test_a_resumed_request_is_replayed(processor: KimiK2LogitsProcessor, vocabulary: Vocabulary) -> None:
    output = render_tool_calls([ToolCall("f", 0, "{}")], vocabulary)[:-2]
    processor.update_state(update(added=[(0, params(REQUIRED), [1], output)]))
    assert allowed(processor, vocabulary, 0) == expected(vocabulary, REQUIRED, output)
    del output[-1]  # vLLM takes tokens back when it lost their KV cache
    assert allowed(processor, vocabulary, 0) == expected(vocabulary, REQUIRED, output)


def test_a_token_that_is_not_known_yet(processor: KimiK2LogitsProcessor, vocabulary: Vocabulary) -> None:
    output: list[int] = []
    processor.update_state(update(added=[(0, params(REQUIRED), [1], output)]))
    allowed(processor, vocabulary, 0)
    output.append(-1)  # asynchronous scheduling: the id comes between update_state and apply
    processor.update_state(None)
    output[-1] = vocabulary.format.section_begin
    assert allowed(processor, vocabulary, 0) == {vocabulary.format.call_begin}


def test_reasoning_that_the_prompt_opened(processor: KimiK2LogitsProcessor, vocabulary: Vocabulary) -> None:
    prompt = [1, vocabulary.format.think_begin]
    processor.update_state(update(added=[(0, params(REQUIRED), prompt, []), (1, params(REQUIRED), None, [])]))
    assert allowed(processor, vocabulary, 0) == expected(vocabulary, REQUIRED, [], in_reasoning=True)
    assert allowed(processor, vocabulary, 1) == {vocabulary.format.section_begin}


@pytest.mark.parametrize(
    "extra",
    ["{", "[]", '{"tools": 1}', 5, '{"tools": [{"type": "function", "function": {"name": "f", "strict": true, "parameters": {"not": {}}}}], "tool_choice": "required"}'],
)  # fmt: skip
def test_a_bad_request_ends_alone(processor: KimiK2LogitsProcessor, vocabulary: Vocabulary, extra: Any) -> None:
    markers = vocabulary.format
    bad = SamplingParams(extra_args={"constrained_k2": extra})
    output: list[int] = []
    processor.update_state(update(added=[(0, bad, [1], output), (1, params(REQUIRED), [1], [])]))
    header = [markers.section_begin, markers.call_begin, *vocabulary.encode("functions.f:0"), markers.argument_begin]
    for token in header:  # a strict schema without a grammar is found when its tool is called
        allowed(processor, vocabulary, 0)
        output.append(token)
    assert allowed(processor, vocabulary, 0) == {markers.turn_end}
    assert allowed(processor, vocabulary, 1) == {markers.section_begin}


def test_a_token_from_outside_the_grammar_ends_its_request(
    processor: KimiK2LogitsProcessor, vocabulary: Vocabulary
) -> None:
    processor.update_state(update(added=[(0, params(REQUIRED), [1], [65]), (1, params(REQUIRED), [1], [])]))
    assert allowed(processor, vocabulary, 0) == {vocabulary.format.turn_end}
    assert allowed(processor, vocabulary, 1) == {vocabulary.format.section_begin}


@pytest.mark.usefixtures("masks_by_llguidance")
def test_a_mask_without_tokens_ends_its_request(
    processor: KimiK2LogitsProcessor, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = LLGuidanceMatcher.fill
    monkeypatch.setattr(LLGuidanceMatcher, "fill", lambda self, row, address=0: fill(self, row, address) or row.fill(0))
    output = render_tool_calls([ToolCall("f", 0, "{}")], vocabulary)
    output = output[: output.index(vocabulary.format.argument_begin) + 1]
    processor.update_state(update(added=[(0, params(REQUIRED), [1], output), (1, params(REQUIRED), [1], [])]))
    assert allowed(processor, vocabulary, 0) == {vocabulary.format.turn_end}
    assert allowed(processor, vocabulary, 1) == {vocabulary.format.section_begin}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (SamplingParams(extra_args={"constrained_k2": "{"}), "vllm_xargs.constrained_k2: must be JSON"),
        (SamplingParams(extra_args={"constrained_k2": json.dumps(BODY)}, structured_outputs=StructuredOutputsParams(regex="a")),
         "structured_outputs"),
        (SamplingParams(extra_args={"constrained_k2": 1}), "must be a string"),
        (SamplingParams(extra_args={"constrained_k2": json.dumps(BODY | {"tool_choice": "x"})}), "tool_choice"),
        (SamplingParams(extra_args={"constrained_k2": json.dumps(
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"not": {}}}}]})}), "no value satisfies"),
    ],
)  # fmt: skip
def test_validation_before_the_engine(made: SamplingParams, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KimiK2LogitsProcessor.validate_params(made)


@pytest.mark.parametrize(
    "extra", [None, {}, {"other": 1}, {"constrained_k2": "off"}, {"constrained_k2": json.dumps(BODY)}]
)
def test_validation_lets_the_rest_through(extra: Any) -> None:
    KimiK2LogitsProcessor.validate_params(SamplingParams(extra_args=extra))


def test_it_changes_the_argmax(processor: KimiK2LogitsProcessor) -> None:
    assert not processor.is_argmax_invariant()
