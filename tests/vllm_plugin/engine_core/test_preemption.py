"""Requests that vLLM preempts or aborts, on its own scheduler: their masks, and those of the others."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm.v1.request import RequestStatus

from constrained_k2 import Compiler, ToolCallSpec, Vocabulary
from scripts.bundled_samples.ordinary import TOOLS
from tests.kit.walks import walk
from tests.vllm_plugin.masks import mask_after
from tests.vllm_plugin.scheduling import ScriptedEngine, admitted, config_of, drafter

SPEC = {"tools": list(TOOLS[:3]), "tool_choice": "required", "parallel_tool_calls": False}
REQUESTS = 5
BLOCKS = 12  # of 16 tokens: two of the five turns and their drafts
PROMPT = [1] * 20
LENGTH = 110
PARAMETERS = [tool["function"].get("parameters", {}) for tool in TOOLS[:3]]


@pytest.mark.parametrize("speculative", [False, True])
def test_masks_after_a_preemption_or_an_abort(model: Path, vocabulary: Vocabulary, *, speculative: bool) -> None:
    """A preempted request starts again from its prompt and all that it has written."""
    given: dict[str, Any] = {} if speculative else {"speculative_config": None}
    config = config_of(model, max_model_len=160, **given)
    engine = ScriptedEngine(config, asynchronous=False, blocks=BLOCKS)
    compiled = Compiler(vocabulary).compile(ToolCallSpec.from_openai(SPEC))
    scripts = {str(seed): walk(compiled.matcher(), vocabulary, seed, PARAMETERS)[:LENGTH] for seed in range(REQUESTS)}
    params = admitted(vocabulary, SPEC, max_tokens=LENGTH)
    requests = [engine.add(name, params, ids, PROMPT) for name, ids in scripts.items()]
    aborted, draft = requests[-1], drafter(scripts, random.Random(3), vocabulary)

    def drafted(name: str, written: int) -> list[int]:
        if len(engine.outputs[aborted.request_id]) > 5 and not aborted.is_finished():
            engine.scheduler.finish_requests(aborted.request_id, RequestStatus.FINISHED_ABORTED)
        return draft(name, written) if speculative else []

    engine.run(drafted)
    assert sum(request.num_preemptions for request in requests) > 0, "no request was preempted"
    for name, ids in scripts.items():
        written = engine.outputs[name][: len(ids)]
        assert written == ids[: len(written)]
        assert len(written) == len(ids) or name == aborted.request_id
        for at in {0, len(written) // 2, len(written) - 1}:
            assert np.array_equal(engine.rows[name][at], mask_after(vocabulary, SPEC, ids[:at])), (name, at)
    assert aborted.status == RequestStatus.FINISHED_ABORTED
    assert all(engine.reasons[name] in {"stop", "length"} for name in list(scripts)[:-1])
