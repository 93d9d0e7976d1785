"""The grammar's drafts: with values of the prompt, beside a draft model's, and which of the two are run. No token changes."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.request import Request

from constrained_k2 import Vocabulary
from constrained_k2.errors import InvalidRequest
from constrained_k2.vllm_plugin.engine_core.speculation import DraftScores, GrammarDrafting, grammar_drafting
from constrained_k2.vllm_plugin.engine_core.structured_output import ConstrainedOutputManager
from tests.kit.tools import tool
from tests.vllm_plugin.scheduling import DRAFTS, Draft, ScriptedEngine, admitted, config_of, turn_of

SCHEMA = {
    "type": "object",
    "properties": {"operation": {"enum": ["create_reservation", "cancel_reservation"]}, "note": {"type": "string"}},
    "required": ["operation", "note"],
}
SPEC = {"tools": [tool("f", SCHEMA)], "tool_choice": "required"}
ARGUMENTS = json.dumps({"operation": "cancel_reservation", "note": "the guest is ill and will not come"})
OURS = {"model": "constrained_k2.vllm_plugin.GrammarProposer", "num_speculative_tokens": DRAFTS}


def nothing(*_: object) -> list[int]:
    return []


def steps(
    model: Path, vocabulary: Vocabulary, draft: Draft = nothing, *, drafts: bool, spec: Any = SPEC,
    arguments: str = ARGUMENTS, prompt: str = "x", **fields: Any,
) -> int:  # fmt: skip
    """The steps of a turn beside a drafter that proposes these tokens."""
    additional = {"constrained_k2": {"route": "structured_output", "drafts": drafts}}
    ids = turn_of(vocabulary, ("f", arguments))
    engine = ScriptedEngine(config_of(model, additional_config=additional, **fields), asynchronous=False)
    engine.add("a", admitted(vocabulary, spec), ids, vocabulary.encode(prompt))
    engine.run(lambda name, written: draft(name, written) if written < len(ids) else [])
    assert engine.outputs["a"][: len(ids)] == ids and engine.reasons == {"a": "stop"}
    engine.manager.clear_backend()
    return engine.steps


def beside(model: Path, **fields: Any) -> dict[str, Any]:
    """The configuration of a draft model."""
    given = {"method": "draft_model", "model": str(model), "num_speculative_tokens": DRAFTS}
    return {"speculative_config": given | fields}


@pytest.mark.parametrize("right", [0, 1, 2, DRAFTS])
def test_the_longer_drafts_win(model: Path, vocabulary: Vocabulary, right: int) -> None:
    ids = turn_of(vocabulary, ("f", ARGUMENTS))

    def propose(_: str, written: int) -> list[int]:
        return [*ids[written : written + right], *[vocabulary.format.think_begin] * (DRAFTS - right)]

    alone, both = (steps(model, vocabulary, propose, drafts=drafts, **beside(model)) for drafts in (False, True))
    grammar = steps(model, vocabulary, drafts=True, **beside(model))
    assert both <= min(alone, grammar)
    assert both < alone or right == DRAFTS
    assert both < grammar or right == 0


def test_probabilities_belong_to_the_models_own_drafts(model: Path, vocabulary: Vocabulary) -> None:
    given = beside(model, draft_sample_method="probabilistic")
    with_ours, without = (steps(model, vocabulary, drafts=drafts, **given) for drafts in (True, False))
    assert with_ours == without


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
    speculative = SimpleNamespace(
        method=method, model="m", draft_sample_method="greedy", enable_adaptive_verification=False
    )
    config = SimpleNamespace(
        additional_config={}, speculative_config=speculative, use_v2_model_runner=v2, num_speculative_tokens=DRAFTS,
        scheduler_config=SimpleNamespace(async_scheduling=asynchronous),
    )  # fmt: skip
    assert grammar_drafting(config) == expected


@pytest.mark.parametrize(
    ("method", "drafts", "asynchronous"), [("ngram_gpu", True, True), ("custom_class", False, False)]
)
def test_a_grammar_that_cannot_draft_alone_is_refused(
    model: Path, method: str, drafts: bool, asynchronous: bool
) -> None:
    additional = {"constrained_k2": {"route": "structured_output", "drafts": drafts}}
    config = config_of(model, speculative_config=OURS | {"method": method}, additional_config=additional)
    config.scheduler_config.async_scheduling = asynchronous  # on the V1 model runner
    with pytest.raises(InvalidRequest, match="the grammar cannot draft alone"):
        ConstrainedOutputManager(config)


VALUE = "Petrovaradin on the river Danube"
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
FIND = {"tools": [tool("f", PLACE)], "tool_choice": "required"}


@pytest.mark.parametrize("drafts", [True, False])
def test_values_of_the_prompt_are_drafted(model: Path, vocabulary: Vocabulary, drafts: bool) -> None:
    given: dict[str, Any] = {"drafts": drafts, "spec": FIND, "arguments": json.dumps({"place": VALUE})}
    with_value, without = (
        steps(model, vocabulary, prompt=text, **given) for text in (f'Find "{VALUE}", please.', "Find it, please.")
    )
    assert with_value < without - 3 if drafts else with_value == without


def test_a_prompt_of_embeddings_holds_no_values(model: Path, vocabulary: Vocabulary) -> None:
    manager = ConstrainedOutputManager(config_of(model))
    request = Request("a", [1, 2], admitted(vocabulary, FIND), None)
    request.prompt_token_ids = None
    manager.grammar_init(request)
    assert request.structured_output_request._grammar.result(timeout=60).draft(4)
    manager.clear_backend()


# The source whose drafts have been better is the one whose drafts are run


class Turn:
    pass


def test_the_better_source_is_found_and_found_again() -> None:
    scores, turn, written = DraftScores(), Turn(), [1]
    for right, wrong in (([5, 6], [5, 7]), ([5, 7], [5, 6])):  # the grammar is right, and then the model
        for _ in range(100):
            scores.compare(turn, written, model=wrong if right == [5, 6] else right, grammar=[5, 6])
            written += [*right, 9]
        assert list(scores.better([8], [9])) == ([9] if right == [5, 6] else [8])


def test_the_longer_drafts_win_where_neither_is_better() -> None:
    for model, grammar, better in (([1], [2, 3], [2, 3]), ([1, 2], [3], [1, 2]), ([1], [2], [1])):
        assert DraftScores().better(model, grammar) == better


def test_drafts_that_go_on_further_are_not_compared() -> None:
    scores, turn = DraftScores(), Turn()
    scores.compare(turn, [1], [5, 6], [5])
    scores.compare(turn, [1, 5, 6], [], [7])
    scores.compare(turn, [1, 5, 6, 7], [8], [9])
    scores.compare(turn, [1, 5, 6, 7, 9], [], [])
    assert scores.better([2, 3, 4], [2, 3]) == [2, 3, 4]
    assert scores.better([2, 4, 4], [2, 3]) == [2, 3]


def test_turns_are_forgotten_with_their_requests() -> None:
    scores = DraftScores()
    for _ in range(10):
        scores.compare(Turn(), [1], [5], [6])
    assert len(scores._latest) == 0
