"""The backend route on vLLM's own classes, without a model: schedulers, drafts, reasoning, failures, preemption, aborts."""

import gc
import json
import random
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm.config import VllmConfig
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.request import RequestStatus

from constrained_k2 import Compiler, ToolCallMatcher, ToolCallSpec, Vocabulary
from constrained_k2.turn.phases import Phase
from constrained_k2.vllm_plugin.shared.constraint import tag
from constrained_k2.vllm_plugin.shared.counters import EngineCounters, engine_counters
from constrained_k2.vocabulary.bitmask import allowed_ids
from scripts.bundled_samples.ordinary import TOOLS
from tests.kit.tools import tool
from tests.kit.walks import walk
from tests.vllm_plugin.masks import mask_after
from tests.vllm_plugin.scheduling import ScriptedEngine, admitted, assert_masks, config_of, drafter, turn_of
from tests.vllm_plugin.served import EMPTY, REQUIRED

CALL = ("f", "{ }")


@pytest.fixture(scope="module")
def config(model: Path) -> VllmConfig:
    return config_of(model)


@pytest.fixture(scope="module")
def plain_config(model: Path) -> VllmConfig:
    return config_of(model, speculative_config=None, max_num_seqs=160)


def turns(vocabulary: Vocabulary, seed: int) -> Iterator[tuple[str, Any, list[int], list[int]]]:
    """Turns that cross every transition of the format: ``(name, spec, prompt, ids)``."""
    markers, encode = vocabulary.format, vocabulary.encode
    calls = turn_of(vocabulary, CALL, ("f", "{}"))
    auto = {"tools": [EMPTY], "tool_choice": "auto", "thinking": True}
    thinking, opened = auto | {"chat_template_kwargs": {"thinking": True}}, [1, markers.think_begin]
    yield "text", auto, [1], [*encode("Nothing to call."), markers.turn_end]
    yield "call", auto, [1], [*encode("So: "), *calls]
    yield "reasoning", thinking, opened, [*encode("Hm."), markers.think_end, *encode("So"), *calls]
    yield "section in reasoning", thinking, opened, [*encode("Hm."), *calls]
    yield "the other stop", auto, [1], [*calls[:-1], markers.text_end]
    required = {"tools": TOOLS, "tool_choice": "required"}
    for number in range(2):
        matcher = Compiler(vocabulary).compile(ToolCallSpec.from_openai(required)).matcher()
        yield f"random {number}", required, [1], walk(matcher, vocabulary, seed=seed + number, limit=900)


def run(engine: ScriptedEngine, vocabulary: Vocabulary, given: dict[str, Any], draft: Any = lambda *_: []) -> None:
    """Each turn is written as its script, under the masks of a matcher that never saw a draft."""
    for name, (_, spec, prompt, ids) in given.items():
        engine.add(name, admitted(vocabulary, spec), ids, prompt)
    engine.run(draft)
    for name, (_, spec, prompt, ids) in given.items():
        assert engine.outputs[name][: len(ids)] == ids
        assert engine.reasons[name] == "stop"
        places = {0, 1, len(ids) // 2, len(ids) - 2, len(ids) - 1}
        in_reasoning = prompt[-1] == vocabulary.format.think_begin
        assert_masks(engine, vocabulary, name, spec, places, in_reasoning=in_reasoning)


@pytest.mark.slow
def test_large_batches_without_drafts(
    plain_config: VllmConfig, vocabulary: Vocabulary, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows than vLLM fills in one thread: filled as a whole, each as a matcher of its own would, and counted."""
    engine = ScriptedEngine(plain_config, asynchronous=asynchronous)
    monkeypatch.setattr(engine.manager, "_fill_bitmasks", lambda _: pytest.fail("vLLM filled a row"))
    before = engine_counters.snapshot()["totals"]
    given_turns = {f"{seed} {turn[0]}": turn for seed in range(20) for turn in turns(vocabulary, 100 + seed)}
    assert len(given_turns) > 128
    run(engine, vocabulary, given_turns)
    totals = engine_counters.snapshot()["totals"]
    counted = sum(
        totals[f"masked_rows {kind}"] - before[f"masked_rows {kind}"] for kind in ("constant", "header", "arguments")
    )
    assert counted >= sum(len(ids) for _, _, _, ids in given_turns.values())
    assert all(
        totals[f"mask_seconds {kind}"] > before[f"mask_seconds {kind}"] for kind in ("constant", "header", "arguments")
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_drafts_change_nothing(config: VllmConfig, vocabulary: Vocabulary, asynchronous: bool, seed: int) -> None:
    """Every row, behind whatever was drafted and taken back, is the mask of a matcher that never saw a draft."""
    engine = ScriptedEngine(config, asynchronous=asynchronous)
    given_turns = {turn[0]: turn for turn in turns(vocabulary, seed)}
    run(engine, vocabulary, given_turns, drafter(engine.scripts, random.Random(seed), vocabulary))
    assert engine.steps < max(map(len, engine.scripts.values()))
    engine.manager.clear_backend()


def test_behind_a_stop_only_stops(config: VllmConfig, vocabulary: Vocabulary, asynchronous: bool) -> None:
    """vLLM leaves rows of a terminated grammar open, and ``ignore_eos`` goes on: ours never terminates."""
    engine = ScriptedEngine(config, asynchronous=asynchronous)
    stops = set(vocabulary.format.stop_ids)
    ids = turn_of(vocabulary, CALL)
    engine.add("a", admitted(vocabulary, REQUIRED, ignore_eos=True, max_tokens=len(ids) + 9), ids)
    engine.run(drafter({"a": ids}, random.Random(1), vocabulary))
    assert engine.outputs["a"][: len(ids)] == ids
    behind = [row for at, row in engine.rows["a"].items() if at >= len(ids)]
    assert len(behind) >= 9
    assert all(set(allowed_ids(row).tolist()) == stops for row in behind)
    assert engine.reasons["a"] == "length"


def constrained_by_vllm(vocabulary: Vocabulary, **form: Any) -> Any:
    params = admitted(vocabulary, structured_outputs=StructuredOutputsParams(**form))
    assert params.structured_outputs is not None
    params.structured_outputs._backend = "xgrammar"  # as vLLM's validation leaves it
    return params


def test_requests_of_others_are_vllms(config: VllmConfig, vocabulary: Vocabulary, counters: EngineCounters) -> None:
    """JSON, a regular expression and a structural tag beside calls; the first of them chooses vLLM's backend."""
    engine = ScriptedEngine(config, asynchronous=False)
    tagged = {"structures": [{"begin": "<a>", "schema": {"type": "integer"}, "end": "</a>"}], "triggers": ["<a>"]}
    theirs: dict[str, tuple[dict[str, Any], str]] = {
        "json": ({"json": {"type": "integer"}}, "12"),
        "regex": ({"regex": "ab+c"}, "abbc"),
        "tag": ({"structural_tag": json.dumps(tagged)}, "x<a>7</a>"),
    }
    engine.add("ours", admitted(vocabulary, REQUIRED), turn_of(vocabulary, CALL))
    assert engine.manager.backend is None
    for name, (form, text) in theirs.items():
        engine.add(
            name, constrained_by_vllm(vocabulary, **form), [*vocabulary.encode(text), vocabulary.format.turn_end]
        )
    assert engine.manager.backend is not None
    engine.add("free", admitted(vocabulary), turn_of(vocabulary, CALL, text="free"))
    engine.run(drafter(engine.scripts, random.Random(2), vocabulary))
    assert engine.reasons == dict.fromkeys([*theirs, "ours", "free"], "stop")
    for name in theirs:
        opening = set(allowed_ids(engine.rows[name][0]).tolist())
        assert (vocabulary.encode("Z")[0] in opening) == (name == "tag")
    assert not engine.rows["free"] and counters.unconstrained_calls == 1


def test_our_grammar_constrains_the_reasoning(model: Path, vocabulary: Vocabulary) -> None:
    """vLLM does not mask before its reasoning parser sees the end of reasoning; for us it does, from the first token."""
    engine = ScriptedEngine(config_of(model, reasoning_parser="kimi_k2"), asynchronous=False)
    markers = vocabulary.format
    prompt, reasoning = [1, markers.think_begin], [*vocabulary.encode("Hm."), markers.think_end]
    theirs = constrained_by_vllm(vocabulary, regex="ab+c")
    engine.add("ours", admitted(vocabulary, REQUIRED), [*reasoning, *turn_of(vocabulary, CALL)], prompt)
    engine.add("theirs", theirs, [*reasoning, *vocabulary.encode("abc"), markers.turn_end], prompt)
    engine.run(drafter(engine.scripts, random.Random(3), vocabulary))
    assert engine.reasons == {"ours": "stop", "theirs": "stop"}
    assert np.array_equal(engine.rows["ours"][0], mask_after(vocabulary, REQUIRED, [], in_reasoning=True))
    free = allowed_ids(engine.rows["theirs"][0]).size  # of all bits; vLLM 0.33 keeps markers out of the reasoning
    assert free > 32 * engine.rows["theirs"][0].size - 8
    assert allowed_ids(engine.rows["ours"][len(reasoning)]).tolist() == [markers.section_begin]


@pytest.mark.parametrize("speculative", [False, True])
def test_a_request_whose_grammar_cannot_be_compiled_ends_alone(
    config: VllmConfig, plain_config: VllmConfig, vocabulary: Vocabulary, asynchronous: bool, speculative: bool
) -> None:
    """Before it is scheduled, or when its tool is called."""
    engine = ScriptedEngine(config if speculative else plain_config, asynchronous=asynchronous)
    ids, late = turn_of(vocabulary, CALL), turn_of(vocabulary, ("g", "{}"))
    uncompiled = REQUIRED | {"tools": [tool("g", {"not": {}}, strict=True)]}
    tag(no_spec := admitted(vocabulary), [])
    engine.add("uncompiled", admitted(vocabulary, uncompiled), ids)
    engine.add("no spec", no_spec, ids)
    engine.add("uncompiled when called", admitted(vocabulary, uncompiled, precompile=()), late)
    engine.add("good", admitted(vocabulary, REQUIRED), ids)
    scripts = dict.fromkeys(engine.scripts, ids)
    draft = drafter(scripts, random.Random(4), vocabulary)
    engine.run(draft if speculative else lambda *_: [])
    assert engine.reasons == dict.fromkeys(scripts, "error") | {"good": "stop"}
    assert not engine.outputs["uncompiled"] and not engine.outputs["no spec"]
    called = late.index(vocabulary.format.argument_begin) + 1
    assert engine.outputs["uncompiled when called"][:called] == late[:called]


@pytest.mark.parametrize("precompile", [(), (1,), (0, 1, 2)])
def test_what_compiles_before_a_request_is_scheduled(
    config: VllmConfig,
    vocabulary: Vocabulary,
    counters: EngineCounters,
    asynchronous: bool,
    precompile: tuple[int, ...],
) -> None:
    """Only what was slow at admission; of the others, only what is called."""
    tools = [tool(name, {"properties": {name + "1": {}}}) for name in ("kept", "slow", "called")]
    engine = ScriptedEngine(config, asynchronous=asynchronous)
    params = admitted(vocabulary, REQUIRED | {"tools": tools}, precompile=precompile)
    request = engine.add("a", params, turn_of(vocabulary, ("called", "{}")))
    assert request.structured_output_request._grammar.result(timeout=60)
    assert counters.snapshot()["totals"]["grammar_lookups miss"] == len(precompile)
    engine.run()
    assert engine.reasons == {"a": "stop"}
    assert counters.snapshot()["totals"]["grammar_lookups miss"] == len({*precompile, 2})


# Requests that vLLM preempts or aborts: their masks, those of the others, and what is kept


SPEC = {"tools": list(TOOLS[:3]), "tool_choice": "required", "parallel_tool_calls": False}
REQUESTS = 5
BLOCKS = 12  # of 16 tokens: two of the five turns and their drafts
PROMPT = [1] * 20
LENGTH = 110
PARAMETERS = [tool["function"].get("parameters", {}) for tool in TOOLS[:3]]
CALLS = [CALL, ("f", "{   }"), ("f", "{}")]
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
