"""The setting counts_dialog: calls of Kimi K3 are numbered through the dialog, on both routes."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate

from constrained_k2 import ToolCall, Vocabulary
from constrained_k2.prompts.xtml import render_turn
from constrained_k2.testing import build_model
from constrained_k2.vllm_plugin import KimiK2LogitsProcessor
from tests.vllm_plugin.scheduling import EMPTY, ScriptedEngine, admitted, config_of
from tests.vllm_plugin.served import vllm_config

BODY = {"tools": [EMPTY], "tool_choice": "required", "first_index": 11}
CALLS = [ToolCall("f", 0, "{}")] * 2
SETTINGS: tuple[dict[str, Any], ...] = ({}, {"counts_dialog": False}, {"counts_dialog": True})


def first_allowed(settings: dict[str, Any]) -> int:
    return 12 if settings.get("counts_dialog") else 1


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_structured_output(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = build_model(tmp_path, arch="llama", wire_format="kimi_k3")
    vocabulary = Vocabulary.from_pretrained(model)
    ours = {"constrained_k2": {"route": "structured_output"} | settings}
    for first in (1, 11, 12):
        engine = ScriptedEngine(config_of(model, additional_config=ours), asynchronous=False)
        turn = render_turn(CALLS, vocabulary, first_index=first)
        engine.add("r", admitted(vocabulary, BODY), turn)
        with nullcontext() if first == first_allowed(settings) else pytest.raises(AssertionError, match="is forbidden"):
            engine.run()
            assert engine.outputs["r"][: len(turn)] == turn


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_logits_processor(k3_model: Path, k3_vocabulary: Vocabulary, settings: dict[str, Any]) -> None:
    config = vllm_config(k3_model, k3_vocabulary, additional_config={"constrained_k2": settings})
    processor = KimiK2LogitsProcessor(config, torch.device("cpu"), is_pin_memory=False)
    for first in (1, 11, 12):
        output: list[int] = []
        params = SamplingParams(extra_args={"constrained_k2": json.dumps(BODY)})
        processor.update_state(BatchUpdate(batch_size=8, removed=[], added=[(0, params, [1], output)], moved=[]))
        is_allowed = True
        for token in render_turn(CALLS, k3_vocabulary, first_index=first):
            is_allowed = is_allowed and bool(processor.apply(torch.zeros(1, k3_vocabulary.size))[0, token] == 0)
            output.append(token)
            processor.update_state(None)
        assert is_allowed == (first == first_allowed(settings))
