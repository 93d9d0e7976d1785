"""The backend route on vLLM's own classes, without a model: schedulers, drafts, reasoning, failures."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import StructuredOutputsParams

from constrained_k2 import Compiler, ToolCall, ToolCallSpec, Vocabulary, render_tool_calls
from constrained_k2.bitmask import allocate_bitmask, allowed_ids
from constrained_k2.errors import SchemaTooCostly
from constrained_k2.evaluation.samples import TOOLS
from constrained_k2.fixtures import build_model
from constrained_k2.matcher import ToolCallMatcher
from constrained_k2.vllm_plugin.backend import ToolCallOutputManager, is_marked, mark
from constrained_k2.vllm_plugin.backend_grammar import ToolCallGrammar
from tests.vllm_plugin.scheduling import ScriptedEngine
from tests.walks import walk

DRAFTS = 4
EMPTY = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "additionalProperties": False}}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("model"), arch="llama")


@pytest.fixture(scope="module")
def vocabulary(model: Path) -> Vocabulary:
    return Vocabulary.from_pretrained(model)


def config_of(model: Path, **fields: Any) -> VllmConfig:
    ngram = {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 2}
    given = {
        "trust_remote_code": True, "max_model_len": 2048, "max_num_batched_tokens": 2048, "max_num_seqs": 8,
        "speculative_config": ngram, "additional_config": {"constrained_k2": {"route": "backend"}},
    }  # fmt: skip
    return EngineArgs(model=str(model), **(given | fields)).create_engine_config()


@pytest.fixture(scope="module")
def config(model: Path) -> VllmConfig:
    return config_of(model)


def admitted(vocabulary: Vocabulary, spec: Any = None, **fields: Any) -> SamplingParams:
    """Parameters as they reach the engine core: with the tokenizer's stop, and marked if there is a spec."""
    extra = None if spec is None else {"constrained_k2": json.dumps(spec)}
    params = SamplingParams(extra_args=extra, **({"max_tokens": 1000} | fields))
    params.update_from_generation_config({}, vocabulary.format.turn_end)
    if spec is not None:
        mark(params)
    return params


def mask_after(vocabulary: Vocabulary, spec: Any, ids: list[int], **options: Any) -> np.ndarray:
    matcher = Compiler(vocabulary).compile(ToolCallSpec.from_openai(spec)).matcher(**options)
    assert matcher.accept_tokens(ids)
    bitmask = allocate_bitmask(1, vocabulary.size)
    matcher.fill_bitmask(bitmask)
    return bitmask[0]


def turns(vocabulary: Vocabulary, seed: int) -> Iterator[tuple[str, Any, list[int], list[int]]]:
    """Turns that cross every joint of the format: ``(name, spec, prompt, ids)``."""
    markers, encode = vocabulary.format, vocabulary.encode
    calls = render_tool_calls([ToolCall("f", 0, "{ }"), ToolCall("f", 1, "{}")], vocabulary)
    auto = {"tools": [EMPTY], "tool_choice": "auto", "thinking": True}
    thinking = auto | {"chat_template_kwargs": {"thinking": True}}
    stop = markers.turn_end
    yield "text", auto, [1], [*encode("Nothing to call."), stop]
    yield "call", auto, [1], [*encode("So: "), *calls, stop]
    yield "reasoning", thinking, [1, markers.think_begin], [*encode("Hm."), markers.think_end, *encode("So"), *calls, stop]
    yield "section in reasoning", thinking, [1, markers.think_begin], [*encode("Hm."), *calls, stop]
    yield "the other stop", auto, [1], [*calls, markers.text_end, stop]
    required = {"tools": TOOLS, "tool_choice": "required"}
    for number in range(2):
        matcher = Compiler(vocabulary).compile(ToolCallSpec.from_openai(required)).matcher()
        yield f"random {number}", required, [1], walk(matcher, vocabulary, seed=seed + number, limit=900)


def drafter(scripts: dict[str, list[int]], chance: random.Random, vocabulary: Vocabulary) -> Any:
    """Drafts that begin as the script goes on, some wrong at some place, some running past the stop, some of padding."""

    def draft(name: str, written: int) -> list[int]:
        script = scripts[name]
        right = [*script[written : written + DRAFTS], *([script[-1]] * DRAFTS)][:DRAFTS]
        kind = chance.randrange(4)
        if kind == 1:
            right[chance.randrange(DRAFTS)] = chance.choice([0, 5, *vocabulary.special_tokens.values()])
        if kind == 2:
            cut = chance.randrange(DRAFTS)
            right[cut:] = [-1] * (DRAFTS - cut)
        return right if kind else []

    return draft


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_drafts_change_nothing(config: VllmConfig, vocabulary: Vocabulary, asynchronous: bool, seed: int) -> None:
    """Every row, behind whatever was drafted and taken back, is the mask of a matcher that never saw a draft."""
    engine = ScriptedEngine(config, asynchronous=asynchronous)
    given_turns = {name: (spec, prompt, ids) for name, spec, prompt, ids in turns(vocabulary, seed)}
    scripts = {name: ids for name, (_, _, ids) in given_turns.items()}
    for name, (spec, prompt, ids) in given_turns.items():
        params = admitted(vocabulary, spec)
        engine.add(name, params, ids, prompt)
    engine.run(drafter(scripts, random.Random(seed), vocabulary))
    for name, (spec, prompt, ids) in given_turns.items():
        written = engine.outputs[name]
        assert written[: len(ids)] == ids
        assert engine.reasons[name] == "stop"
        in_reasoning = prompt[-1] == vocabulary.format.think_begin
        for at in {0, 1, len(ids) // 2, len(ids) - 2, len(ids) - 1}:
            fresh = mask_after(vocabulary, spec, ids[:at], in_reasoning=in_reasoning)
            assert np.array_equal(engine.rows[name][at], fresh), (name, at)
    assert engine.steps < max(map(len, scripts.values()))
    engine.manager.clear_backend()
