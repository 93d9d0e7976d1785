"""Beside a draft model's drafts, synchronous scheduling: the longer ones are run, and no token changes."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2 import ToolCall, Vocabulary, render_tool_calls
from constrained_k2.errors import InvalidRequest
from constrained_k2.vllm_plugin.engine_core.structured_output import ConstrainedOutputManager
from constrained_k2.vllm_plugin.speculation import GrammarDrafting, grammar_drafting
from tests.vllm_plugin.scheduling import DRAFTS, Draft, ScriptedEngine, admitted, config_of

SCHEMA = {
    "type": "object",
    "properties": {"operation": {"enum": ["create_reservation", "cancel_reservation"]}, "note": {"type": "string"}},
    "required": ["operation", "note"],
}
SPEC = {"tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}], "tool_choice": "required"}
ARGUMENTS = json.dumps({"operation": "cancel_reservation", "note": "the guest is ill and will not come"})
OURS = {"model": "constrained_k2.vllm_plugin.GrammarProposer", "num_speculative_tokens": DRAFTS}


def steps(model: Path, vocabulary: Vocabulary, draft: Draft, *, drafts: bool, **speculation: str) -> int:
    """The steps of a turn beside a draft model that proposes these tokens."""
    given = {"method": "draft_model", "model": str(model), "num_speculative_tokens": DRAFTS} | speculation
    additional = {"constrained_k2": {"route": "structured_output", "drafts": drafts}}
    config = config_of(model, speculative_config=given, additional_config=additional)
    ids = [*render_tool_calls([ToolCall("f", 0, ARGUMENTS)], vocabulary), vocabulary.format.turn_end]
    engine = ScriptedEngine(config, asynchronous=False)
    engine.add("a", admitted(vocabulary, SPEC), ids)
    engine.run(lambda name, written: draft(name, written) if written < len(ids) else [])
    assert engine.outputs["a"][: len(ids)] == ids and engine.reasons == {"a": "stop"}
    engine.manager.clear_backend()
    return engine.steps


@pytest.mark.parametrize("right", [0, 1, 2, DRAFTS])
def test_the_longer_drafts_win(model: Path, vocabulary: Vocabulary, right: int) -> None:
    ids = [*render_tool_calls([ToolCall("f", 0, ARGUMENTS)], vocabulary), vocabulary.format.turn_end]

    def propose(_: str, written: int) -> list[int]:
        return [*ids[written : written + right], *[vocabulary.format.think_begin] * (DRAFTS - right)]

    def nothing(*_: object) -> list[int]:
        return []

    alone, both = (steps(model, vocabulary, propose, drafts=drafts) for drafts in (False, True))
    grammar = steps(model, vocabulary, nothing, drafts=True)
    assert both <= min(alone, grammar)
    assert both < alone or right == DRAFTS
    assert both < grammar or right == 0


def test_probabilities_belong_to_the_models_own_drafts(model: Path, vocabulary: Vocabulary) -> None:
    def propose(*_: object) -> list[int]:
        return []

    found = [
        steps(model, vocabulary, propose, drafts=drafts, draft_sample_method="probabilistic")
        for drafts in (True, False)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("method", "v2", "asynchronous", "expected"),
    [
        ("draft_model", False, False, GrammarDrafting(DRAFTS, beside_model=True)),
        ("draft_model", True, False, GrammarDrafting()),
        ("draft_model", True, True, GrammarDrafting()),
        ("draft_model", False, True, GrammarDrafting()),
        ("ngram", False, False, GrammarDrafting(DRAFTS)),
        ("ngram_gpu", True, True, GrammarDrafting()),
        ("ngram_gpu", False, False, GrammarDrafting(DRAFTS)),
        ("custom_class", False, False, GrammarDrafting(DRAFTS)),
        ("medusa", False, False, GrammarDrafting()),
    ],
)
def test_where_the_grammar_drafts(method: str, v2: bool, asynchronous: bool, expected: GrammarDrafting) -> None:
    config = SimpleNamespace(
        additional_config={},
        speculative_config=SimpleNamespace(
            method=method, model="m", draft_sample_method="greedy", enable_adaptive_verification=False
        ),
        scheduler_config=SimpleNamespace(async_scheduling=asynchronous),
        use_v2_model_runner=v2,
        num_speculative_tokens=DRAFTS,
    )
    assert grammar_drafting(config) == expected


@pytest.mark.parametrize(
    "fields", [{"method": "ngram_gpu", "async": True}, {"method": "custom_class", "drafts": False}]
)
def test_a_grammar_that_cannot_draft_alone_is_refused(model: Path, fields: dict[str, object]) -> None:
    drafts, asynchronous = fields.pop("drafts", True), fields.pop("async", False)
    additional = {"constrained_k2": {"route": "structured_output", "drafts": drafts}}
    config = config_of(model, speculative_config=OURS | fields, additional_config=additional)
    config.scheduler_config.async_scheduling = bool(asynchronous)  # on the V1 model runner
    with pytest.raises(InvalidRequest, match="the grammar cannot draft alone"):
        ConstrainedOutputManager(config)
