"""The V1 logits processor on vLLM's own batch updates, without a model; the constraint binds a model that thinks first."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.sample.logits_processor import MoveDirectionality

from constrained_k2 import ToolCall, Vocabulary, render_tool_calls
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.vllm_plugin import KimiK2LogitsProcessor
from constrained_k2.vllm_plugin.shared import row_plan
from constrained_k2.vllm_plugin.shared.counters import EngineCounters
from constrained_k2.vllm_plugin.shared.row_probe import RowProbe
from constrained_k2.vllm_plugin.worker import host_masks
from constrained_k2.vocabulary.bitmask import allowed_ids
from tests.kit.tools import tool
from tests.vllm_plugin.masks import mask_after
from tests.vllm_plugin.served import CPU, EMPTY, NEVER, REQUIRED, OneRow, asking, left, update, vllm_config

BODY = {"tools": [EMPTY]}
NO_VALUE = REQUIRED | {"tools": [tool("f", {"not": {}}, strict=True)]}
TWO = {"tools": [tool(name, {"type": "object", "additionalProperties": False}) for name in ("f", "g")]}
NAMED = {"type": "function", "function": {"name": "g"}}


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
    model: Path, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step here; rows may move."""
    monkeypatch.setattr(row_plan, "INTERVAL", 1)
    processor = KimiK2LogitsProcessor(vllm_config(model, vocabulary), CPU, is_pin_memory=False)
    monkeypatch.setattr(host_masks, "row_probe", probe := RowProbe(counters := EngineCounters()))
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
        probe.count()
        assert (counters.examined_rows, counters.changed_rows) == (number, changed)
        output.append(token)
        processor.update_state(update(moved=[(row, 3 - row, MoveDirectionality.SWAP)]))
        row = 3 - row
    assert 0 < changed < len(turn)


def test_rows_of_others_are_not_written(processor: KimiK2LogitsProcessor, vocabulary: Vocabulary) -> None:
    given = (asking(), asking(REQUIRED), asking())
    processor.update_state(update(added=[(row, params, [1], []) for row, params in enumerate(given)]))
    logits = torch.randn(3, vocabulary.size)
    before = logits.clone()
    processor.apply(logits)
    assert torch.equal(logits[[0, 2]], before[[0, 2]])
    assert not torch.equal(logits[1], before[1])


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
    opened = [1, vocabulary.format.think_begin]
    processor.update_state(update(added=[(0, asking(REQUIRED), opened, []), (1, asking(REQUIRED), None, [])]))
    thinking = expected(vocabulary, REQUIRED, [], in_reasoning=True)
    assert allowed(processor, vocabulary, 0, 1) == [thinking, {vocabulary.format.section_begin}]


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
    header = [markers.section_begin, markers.call_begin, *vocabulary.encode("functions.f:0"), markers.argument_begin]
    for token in [] if begun else header:  # a strict schema without a grammar is found when its tool is called
        allowed(processor, vocabulary)
        output.append(token)
    assert allowed(processor, vocabulary, 0, 1) == [{markers.turn_end}, {markers.section_begin}]


@pytest.mark.usefixtures("masks_by_llguidance")
def test_a_mask_without_tokens_ends_its_request(
    processor: KimiK2LogitsProcessor, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = LLGuidanceMatcher.fill
    monkeypatch.setattr(LLGuidanceMatcher, "fill", lambda self, row, address=0: fill(self, row, address) or row.fill(0))
    markers = vocabulary.format
    output = render_tool_calls([ToolCall("f", 0, "{}")], vocabulary)
    output = output[: output.index(markers.argument_begin) + 1]
    processor.update_state(update(added=[(0, asking(REQUIRED), [1], output), (1, asking(REQUIRED), [1], [])]))
    assert allowed(processor, vocabulary, 0, 1) == [{markers.turn_end}, {markers.section_begin}]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (asking(extra={"constrained_k2": "{"}), "vllm_xargs.constrained_k2: must be JSON"),
        (asking(BODY, structured_outputs=StructuredOutputsParams(regex="a")), "structured_outputs"),
        (asking(extra={"constrained_k2": 1}), "must be a string"),
        (asking(BODY | {"tool_choice": "x"}), "tool_choice"),
        (asking(NO_VALUE | {"tool_choice": "auto"}), "no value satisfies"),
    ],
)
def test_validation_before_the_engine(made: SamplingParams, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KimiK2LogitsProcessor.validate_params(made)


@pytest.mark.parametrize(
    "extra", [None, {}, {"other": 1}, {"constrained_k2": "off"}, {"constrained_k2": json.dumps(BODY)}]
)
def test_validation_leaves_the_rest_as_it_is(extra: Any) -> None:
    params = SamplingParams(extra_args=extra)
    before = params.clone()
    KimiK2LogitsProcessor.validate_params(params)
    assert params == before


def test_it_changes_the_argmax(processor: KimiK2LogitsProcessor) -> None:
    assert not processor.is_argmax_invariant()


# Models that think ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["writes <think> itself", "prompt ends in <think>"])
def prompt(request: pytest.FixtureRequest, vocabulary: Vocabulary) -> list[int]:
    return [5] if request.param.startswith("writes") else [5, vocabulary.format.think_begin]


def begun(model: Path, vocabulary: Vocabulary, choice: Any, prompt: list[int]) -> tuple[OneRow, set[int]]:
    """A request whose reasoning has begun, and the tokens that it may hold."""
    row = OneRow(model, vocabulary, asking(TWO | {"tool_choice": choice, "thinking": True}), prompt)
    if len(prompt) > 1:
        return row, row.allowed()
    assert vocabulary.format.think_begin in row.allowed()
    return row, row.allowed(vocabulary.format.think_begin)


@pytest.mark.parametrize("choice", ["required", NAMED, "auto", "none"])
def test_what_reasoning_may_hold(model: Path, vocabulary: Vocabulary, prompt: list[int], choice: Any) -> None:
    markers = vocabulary.format
    row, found = begun(model, vocabulary, choice, prompt)
    ordinary = {token for token in range(vocabulary.size) if vocabulary.is_ordinary(token)}
    reasoning = ordinary | {markers.think_end} | (set() if choice == "none" else {markers.section_begin})
    assert found == reasoning
    assert row.allowed(*vocabulary.encode("hm, <think> let me see")) == reasoning
    after = row.allowed(markers.think_end)
    if choice in ("required", NAMED):
        assert after == {markers.section_begin}  # reasoning does not replace the call
    else:
        assert after == reasoning - {markers.think_end} | set(markers.stop_ids)


@pytest.mark.parametrize("choice", ["required", NAMED, "auto"])
@pytest.mark.parametrize("closed", [True, False])
def test_the_call_behind_or_inside_reasoning_is_constrained(
    model: Path, vocabulary: Vocabulary, prompt: list[int], choice: Any, closed: bool
) -> None:
    markers = vocabulary.format
    row, _ = begun(model, vocabulary, choice, prompt)
    row.allowed(70, *([markers.think_end] if closed else []))
    for token in render_tool_calls([ToolCall("g", 0, "{}")], vocabulary):
        assert token in row.allowed()
        assert not {markers.think_begin, markers.think_end} & row.allowed(token)
    assert row.allowed() == set(markers.stop_ids)


@pytest.mark.parametrize("closed", [False, True])
def test_thinking_that_is_off(model: Path, vocabulary: Vocabulary, closed: bool) -> None:
    """K2.5's prompt then ends in ``<think></think>``: the call is due at once, and no reasoning opens."""
    markers = vocabulary.format
    prompt = [5, markers.think_begin, markers.think_end] if closed else [5]
    body = TWO | {"tool_choice": "required", "chat_template_kwargs": {"thinking": False}}
    assert OneRow(model, vocabulary, asking(body), prompt).allowed() == {markers.section_begin}
