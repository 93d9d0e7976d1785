"""Requests that vLLM preempts or aborts, on its own schedulers: their masks, those of the others, and what is kept."""

import gc
import random
import weakref
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from constrained_k2 import Compiler, ToolCallMatcher, ToolCallSpec, Vocabulary
from constrained_k2.turn.phases import Phase
from scripts.bundled_samples.ordinary import TOOLS
from tests.kit.walks import walk
from tests.vllm_plugin.scheduling import ScriptedEngine, admitted, assert_masks, config_of, drafter, turn_of
from tests.vllm_plugin.served import REQUIRED

SPEC = {"tools": list(TOOLS[:3]), "tool_choice": "required", "parallel_tool_calls": False}
REQUESTS = 5
BLOCKS = 12  # of 16 tokens: two of the five turns and their drafts
PROMPT = [1] * 20
LENGTH = 110
PARAMETERS = [tool["function"].get("parameters", {}) for tool in TOOLS[:3]]
CALLS = [("f", "{ }"), ("f", "{   }"), ("f", "{}")]
ROUNDS = 12


@pytest.mark.parametrize("speculative", [False, True])
def test_masks_after_a_preemption_or_an_abort(model: Path, vocabulary: Vocabulary, *, speculative: bool) -> None:
    """A preempted request starts again from its prompt and all that it has written."""
    given: dict[str, Any] = {} if speculative else {"speculative_config": None}
    engine = ScriptedEngine(config_of(model, max_model_len=160, **given), asynchronous=False, blocks=BLOCKS)
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
        assert_masks(engine, vocabulary, name, SPEC, {0, len(written) // 2, len(written) - 1})
    assert aborted.status == RequestStatus.FINISHED_ABORTED
    assert all(engine.reasons[name] in {"stop", "length"} for name in list(scripts)[:-1])


def matchers_alive() -> int:
    gc.collect()
    return sum(issubclass(type(thing), ToolCallMatcher) for thing in gc.get_objects())


@pytest.mark.slow
def test_aborts_in_mid_call(model: Path, vocabulary: Vocabulary, asynchronous: bool) -> None:
    """At every place of a turn: before its grammar is compiled, among its drafts, behind a sampled step. Nothing is kept."""
    before = matchers_alive()
    engine = ScriptedEngine(config_of(model), asynchronous=asynchronous)
    ids = turn_of(vocabulary, *CALLS)
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
        assert_masks(engine, vocabulary, goes_on, REQUIRED, (0, len(ids) // 2, len(ids) - 1))
    assert not engine.scheduler.requests
    assert {Phase.CALL_ID, Phase.ARGUMENTS} <= phases, phases
    gc.collect()
    assert [ref() for ref in grammars] == [None] * (2 * ROUNDS)
    assert matchers_alive() == before
    engine.manager.clear_backend()


def test_an_abort_before_the_grammar_is_compiled(model: Path, vocabulary: Vocabulary, asynchronous: bool) -> None:
    engine = ScriptedEngine(config_of(model), asynchronous=asynchronous)
    for name in ("aborted", "goes on"):
        engine.add(name, admitted(vocabulary, REQUIRED), turn_of(vocabulary, *CALLS))
    engine.scheduler.finish_requests("aborted", RequestStatus.FINISHED_ABORTED)
    engine.run()
    assert engine.reasons == {"goes on": "stop"}
    assert not engine.scheduler.requests
    engine.manager.clear_backend()
