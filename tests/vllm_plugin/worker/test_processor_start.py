"""Loading of the logits processor by vLLM, refusals when a server starts, and its order among vLLM's processors."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.exceptions import VLLMValidationError
from vllm.v1.sample.logits_processor import (
    LogitBiasLogitsProcessor,
    MinTokensLogitsProcessor,
    build_logitsprocs,
    validate_logits_processors_parameters,
)
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsProcRequestState,
    build_custom_logits_processors_params_validator,
)

from constrained_k2 import Compiler, FormatMismatch, InvalidRequest, ToolCallSpec, Vocabulary
from constrained_k2.testing import write_tokenizer
from constrained_k2.vllm_plugin import KimiK2LogitsProcessor
from constrained_k2.vllm_plugin.shared.matcher_factory import MatcherFactory
from constrained_k2.vllm_plugin.worker.logits_processor_v1 import KimiK2LogitsProcessorV1
from constrained_k2.vllm_plugin.worker.logits_processor_v2 import KimiK2LogitsProcessorV2
from tests.kit.walks import ids_of
from tests.vllm_plugin.served import CPU, NEVER, PROCESSOR, REQUIRED, asking, left, update, vllm_config


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


def test_the_v2_runner_makes_its_own(model: Path, vocabulary: Vocabulary) -> None:
    made = KimiK2LogitsProcessor(vllm_config(model, vocabulary, 3), states(vocabulary))
    assert isinstance(made, KimiK2LogitsProcessorV2)


def test_both_runners_validate_by_it() -> None:
    bad = asking(extra={"constrained_k2": "{"})
    with pytest.raises(VLLMValidationError, match="must be JSON"):
        validate_logits_processors_parameters([PROCESSOR], bad)
    with pytest.raises(VLLMValidationError, match="must be JSON"):
        build_custom_logits_processors_params_validator([PROCESSOR])(bad)


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
def test_a_vocabulary_without_a_marker(tmp_path: Path, vocabulary: Vocabulary, v2: bool) -> None:
    write_tokenizer(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    written = file.read_text()
    assert "<|tool_call_argument_begin|>" in written
    file.write_text(written.replace("<|tool_call_argument_begin|>", "<|something_else|>"))
    with pytest.raises(FormatMismatch, match="tool_call_argument_begin"):
        KimiK2LogitsProcessor(vllm_config(tmp_path, vocabulary), states(vocabulary) if v2 else CPU)


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
    turn = [markers.section_begin, markers.call_begin, *vocabulary.encode("functions.f:0"), markers.argument_begin]
    turn += [*vocabulary.encode("{}"), markers.call_end, markers.section_end, markers.turn_end]
    params = asking(REQUIRED, max_tokens=90, min_tokens=50, stop_token_ids=[*markers.stop_ids, *turn],
                    logit_bias={70: bias} | dict.fromkeys(turn, bias))  # fmt: skip
    matcher = Compiler(vocabulary).compile(ToolCallSpec.from_openai(REQUIRED)).matcher()
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
        assert kept <= set(ids_of(matcher))
        assert matcher.accept_tokens([token])
        assert logits[0, 70] == NEVER
        assert not logits.isnan().any()
        output.append(token)
        for processor in made.non_argmax_invariant:
            processor.update_state(None)
