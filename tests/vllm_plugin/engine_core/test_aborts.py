"""Requests that are aborted in the middle of a call, under speculative decoding: the others go on, and nothing is kept."""

import gc
import random
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm.v1.request import RequestStatus

from constrained_k2 import ToolCall, ToolCallMatcher, Vocabulary, render_tool_calls
from constrained_k2.turn.phases import Phase
from tests.vllm_plugin.masks import mask_after
from tests.vllm_plugin.scheduling import EMPTY, ScriptedEngine, admitted, config_of, drafter

REQUIRED = {"tools": [EMPTY], "tool_choice": "required"}
CALLS = [ToolCall("f", 0, "{ }"), ToolCall("f", 1, "{   }"), ToolCall("f", 2, "{}")]
ROUNDS = 12


def matchers_alive() -> int:
    gc.collect()
    return sum(issubclass(type(thing), ToolCallMatcher) for thing in gc.get_objects())


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True])
def test_aborts_in_mid_call(model: Path, vocabulary: Vocabulary, asynchronous: bool) -> None:
    """Aborted at every place of a turn: before its grammar is compiled, among its drafts, behind a sampled step."""
    before = matchers_alive()
    engine = ScriptedEngine(config_of(model), asynchronous=asynchronous)
    ids = [*render_tool_calls(CALLS, vocabulary), vocabulary.format.turn_end]
    grammars: list[weakref.ref[Any]] = []
    phases = set()
    for round_number in range(ROUNDS):
        goes_on, aborted = f"on {round_number}", f"aborted {round_number}"
        requests = {name: engine.add(name, admitted(vocabulary, REQUIRED), ids) for name in (goes_on, aborted)}
        drafts = drafter(engine.scripts, random.Random(round_number), vocabulary)
        after = round_number * len(ids) // ROUNDS  # tokens

        def draft_and_abort(name: str, written: int) -> list[int]:
            request = requests.get(aborted)  # noqa: B023 - called within the round
            if name == aborted and request is not None and written >= after:  # noqa: B023
                grammar = request.structured_output_request.grammar
                phases.add(grammar.matcher.phase)
                grammars.append(weakref.ref(grammar))
                engine.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
                del requests[aborted], request, grammar  # noqa: B023
            return drafts(name, written)  # noqa: B023

        engine.run(draft_and_abort)
        grammars.append(weakref.ref(requests.pop(goes_on).structured_output_request.grammar))
        assert engine.reasons[goes_on] == "stop"
        assert engine.outputs[goes_on][: len(ids)] == ids
        assert aborted not in engine.reasons and aborted not in requests
        for at in (0, len(ids) // 2, len(ids) - 1):
            assert np.array_equal(engine.rows[goes_on][at], mask_after(vocabulary, REQUIRED, ids[:at]))
    assert not engine.scheduler.requests
    assert {Phase.CALL_ID, Phase.ARGUMENTS} <= phases, phases
    gc.collect()
    assert [ref() for ref in grammars] == [None] * (2 * ROUNDS)
    assert matchers_alive() == before
    engine.manager.clear_backend()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_abort_before_the_grammar_is_compiled(model: Path, vocabulary: Vocabulary, asynchronous: bool) -> None:
    engine = ScriptedEngine(config_of(model), asynchronous=asynchronous)
    ids = [*render_tool_calls(CALLS, vocabulary), vocabulary.format.turn_end]
    for name in ("aborted", "goes on"):
        engine.add(name, admitted(vocabulary, REQUIRED), ids)
    engine.scheduler.finish_requests("aborted", RequestStatus.FINISHED_ABORTED)
    engine.run()
    assert engine.reasons == {"goes on": "stop"}
    assert not engine.scheduler.requests
    engine.manager.clear_backend()
