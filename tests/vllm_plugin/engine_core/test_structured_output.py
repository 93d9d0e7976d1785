"""The backend route on vLLM's own classes, without a model: schedulers, drafts, reasoning, failures."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from vllm.config import VllmConfig
from vllm.sampling_params import StructuredOutputsParams

from constrained_k2 import Compiler, ToolCall, ToolCallSpec, Vocabulary, render_tool_calls
from constrained_k2.compiler.compiled import schema_location
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.errors import SchemaTooCostly
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.vllm_plugin.engine_core.grammar import ToolCallGrammar
from constrained_k2.vllm_plugin.shared.counters import engine_counters
from constrained_k2.vocabulary.bitmask import TokenSet, allowed_ids, words_per_row
from scripts.bundled_samples.ordinary import TOOLS
from tests.kit.walks import walk
from tests.vllm_plugin.masks import mask_after
from tests.vllm_plugin.scheduling import (
    DRAFTS,
    EMPTY,
    ScriptedEngine,
    admitted,
    config_of,
    drafter,
    fail_from,
    marked_only,
)


@pytest.fixture(scope="module")
def config(model: Path) -> VllmConfig:
    return config_of(model)


def turns(vocabulary: Vocabulary, seed: int) -> Iterator[tuple[str, Any, list[int], list[int]]]:
    """Turns that cross every joint of the format: ``(name, spec, prompt, ids)``."""
    markers, encode = vocabulary.format, vocabulary.encode
    calls = render_tool_calls([ToolCall("f", 0, "{ }"), ToolCall("f", 1, "{}")], vocabulary)
    auto = {"tools": [EMPTY], "tool_choice": "auto", "thinking": True}
    thinking = auto | {"chat_template_kwargs": {"thinking": True}}
    stop = markers.turn_end
    yield "text", auto, [1], [*encode("Nothing to call."), stop]
    yield "call", auto, [1], [*encode("So: "), *calls, stop]
    yield (
        "reasoning",
        thinking,
        [1, markers.think_begin],
        [*encode("Hm."), markers.think_end, *encode("So"), *calls, stop],
    )
    yield "section in reasoning", thinking, [1, markers.think_begin], [*encode("Hm."), *calls, stop]
    yield "the other stop", auto, [1], [*calls, markers.text_end]
    required = {"tools": TOOLS, "tool_choice": "required"}
    for number in range(2):
        matcher = Compiler(vocabulary).compile(ToolCallSpec.from_openai(required)).matcher()
        yield f"random {number}", required, [1], walk(matcher, vocabulary, seed=seed + number, limit=900)


@pytest.fixture(scope="module")
def plain_config(model: Path) -> VllmConfig:
    return config_of(model, speculative_config=None, max_num_seqs=160)


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True])
def test_large_batches_without_drafts(
    plain_config: VllmConfig, vocabulary: Vocabulary, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows than vLLM fills in one thread: filled as a whole, each as a matcher of its own would, and counted."""
    engine = ScriptedEngine(plain_config, asynchronous=asynchronous)
    monkeypatch.setattr(engine.manager, "_fill_bitmasks", lambda _: pytest.fail("vLLM filled a row"))
    before = engine_counters.snapshot()["totals"]
    given_turns = {f"{seed} {turn[0]}": turn for seed in range(20) for turn in turns(vocabulary, 100 + seed)}
    assert len(given_turns) > 128
    for name, (_, spec, prompt, ids) in given_turns.items():
        engine.add(name, admitted(vocabulary, spec), ids, prompt)
    engine.run()
    for name, (_, spec, prompt, ids) in given_turns.items():
        assert engine.outputs[name][: len(ids)] == ids
        in_reasoning = prompt[-1] == vocabulary.format.think_begin
        for at in {0, 1, len(ids) // 2, len(ids) - 1}:
            fresh = mask_after(vocabulary, spec, ids[:at], in_reasoning=in_reasoning)
            assert np.array_equal(engine.rows[name][at], fresh), (name, at)
    totals = engine_counters.snapshot()["totals"]
    counted = sum(totals[f"{kind}_rows"] - before[f"{kind}_rows"] for kind in ("constant", "header", "arguments"))
    assert counted >= sum(len(ids) for _, _, _, ids in given_turns.values())
    assert all(totals[f"{kind}_seconds"] > before[f"{kind}_seconds"] for kind in ("constant", "header", "arguments"))


@pytest.mark.usefixtures("masks_by_llguidance")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_engine_that_gives_up_in_a_batch_costs_one_request(
    plain_config: VllmConfig, vocabulary: Vocabulary, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = LLGuidanceMatcher.fill

    def failing(self: LLGuidanceMatcher, row: Any, address: int = 0) -> None:
        if self._location == schema_location("bad"):
            raise SchemaTooCostly("", "", "", budget="b")
        fill(self, row, address)

    monkeypatch.setattr(LLGuidanceMatcher, "fill", failing)
    engine = ScriptedEngine(plain_config, asynchronous=asynchronous)
    for name in ("good", "bad"):
        parameters: dict[str, Any] = {"properties": {f"only {name} {asynchronous}": {}}}
        tools = [{"type": "function", "function": {"name": name, "parameters": parameters}}]
        ids = [*render_tool_calls([ToolCall(name, 0, "{}")], vocabulary), vocabulary.format.turn_end]
        opening = ids.index(vocabulary.format.argument_begin)
        script = ids if name == "good" else [*ids[: opening + 1], vocabulary.format.turn_end]
        engine.add(name, admitted(vocabulary, {"tools": tools, "tool_choice": "required"}), script)
    engine.run()
    assert engine.reasons == {"good": "stop", "bad": "error"}
    assert set(allowed_ids(engine.rows["bad"][opening + 1]).tolist()) == {vocabulary.format.turn_end}


@pytest.mark.slow
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


CALL = [ToolCall("f", 0, "{ }")]
REQUIRED = {"tools": [EMPTY], "tool_choice": "required"}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_behind_a_stop_only_stops(config: VllmConfig, vocabulary: Vocabulary, asynchronous: bool) -> None:
    """vLLM leaves rows of a terminated grammar open, and ``ignore_eos`` goes on: ours never terminates."""
    engine = ScriptedEngine(config, asynchronous=asynchronous)
    stops = set(vocabulary.format.stop_ids)
    ids = [*render_tool_calls(CALL, vocabulary), vocabulary.format.turn_end]
    params = admitted(vocabulary, REQUIRED, ignore_eos=True, max_tokens=len(ids) + 9)
    engine.add("a", params, ids)
    engine.run(drafter({"a": ids}, random.Random(1), vocabulary))
    assert engine.outputs["a"][: len(ids)] == ids
    behind = [row for at, row in engine.rows["a"].items() if at >= len(ids)]
    assert len(behind) >= 9
    assert all(set(allowed_ids(row).tolist()) == stops for row in behind)
    assert engine.reasons["a"] == "length"


def test_requests_of_others_are_vllms(config: VllmConfig, vocabulary: Vocabulary) -> None:
    """JSON, a regular expression and a structural tag beside calls; the first of them chooses vLLM's backend."""
    engine = ScriptedEngine(config, asynchronous=False)
    ids = [*render_tool_calls(CALL, vocabulary), vocabulary.format.turn_end]
    tag = {"structures": [{"begin": "<a>", "schema": {"type": "integer"}, "end": "</a>"}], "triggers": ["<a>"]}
    theirs = {
        "json": (StructuredOutputsParams(json={"type": "integer"}), "12"),
        "regex": (StructuredOutputsParams(regex="ab+c"), "abbc"),
        "tag": (StructuredOutputsParams(structural_tag=json.dumps(tag)), "x<a>7</a>"),
    }
    engine.add("ours", admitted(vocabulary, REQUIRED), ids)
    assert engine.manager.backend is None
    for name, (asked, text) in theirs.items():
        params = admitted(vocabulary, structured_outputs=asked)
        params.structured_outputs._backend = "xgrammar"  # as vLLM's validation leaves it
        engine.add(name, params, [*vocabulary.encode(text), vocabulary.format.turn_end])
    assert engine.manager.backend is not None
    engine.add("free", admitted(vocabulary), [*vocabulary.encode("free"), vocabulary.format.turn_end])
    engine.run(drafter(engine.scripts, random.Random(2), vocabulary))
    assert engine.reasons == dict.fromkeys([*theirs, "ours", "free"], "stop")
    for name in theirs:
        opening = set(allowed_ids(engine.rows[name][0]).tolist())
        assert (vocabulary.encode("Z")[0] in opening) == (name == "tag")
    assert not engine.rows["free"]


def test_our_grammar_constrains_the_reasoning(model: Path, vocabulary: Vocabulary) -> None:
    """vLLM does not mask before its reasoning parser sees the end of reasoning; for us it does, from the first token."""
    engine = ScriptedEngine(config_of(model, reasoning_parser="kimi_k2"), asynchronous=False)
    markers = vocabulary.format
    prompt = [1, markers.think_begin]
    turn = [*vocabulary.encode("Hm."), markers.think_end, *render_tool_calls(CALL, vocabulary), markers.turn_end]
    theirs = admitted(vocabulary, structured_outputs=StructuredOutputsParams(regex="ab+c"))
    theirs.structured_outputs._backend = "xgrammar"
    answer = [*vocabulary.encode("Hm."), markers.think_end, *vocabulary.encode("abc"), markers.turn_end]
    engine.add("ours", admitted(vocabulary, REQUIRED), turn, prompt)
    engine.add("theirs", theirs, answer, prompt)
    engine.run(drafter(engine.scripts, random.Random(3), vocabulary))
    assert engine.reasons == {"ours": "stop", "theirs": "stop"}
    assert np.array_equal(engine.rows["ours"][0], mask_after(vocabulary, REQUIRED, [], in_reasoning=True))
    free = allowed_ids(engine.rows["theirs"][0]).size  # of all bits; vLLM 0.33 keeps markers out of the reasoning
    assert free > 32 * engine.rows["theirs"][0].size - 8
    end = turn.index(markers.think_end)
    assert set(allowed_ids(engine.rows["ours"][end + 1]).tolist()) == {markers.section_begin}


@pytest.mark.parametrize("speculative", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_request_that_fails_ends_alone(
    config: VllmConfig, plain_config: VllmConfig, vocabulary: Vocabulary, asynchronous: bool, speculative: bool
) -> None:
    """A grammar that cannot be compiled, or on which an engine gives up midway, fails its own request only."""
    engine = ScriptedEngine(config if speculative else plain_config, asynchronous=asynchronous)
    ids = [*render_tool_calls(CALL, vocabulary), vocabulary.format.turn_end]
    uncompiled = {"type": "function", "function": {"name": "g", "parameters": {"not": {}}, "strict": True}}
    engine.add("uncompiled", admitted(vocabulary, REQUIRED | {"tools": [uncompiled]}), ids)
    engine.add("no spec", marked_only(vocabulary), ids)
    late = [*render_tool_calls([ToolCall("g", 0, "{}")], vocabulary), vocabulary.format.turn_end]
    engine.add("uncompiled when called", admitted(vocabulary, REQUIRED | {"tools": [uncompiled]}, precompile=()), late)
    request = engine.add("gives up", admitted(vocabulary, REQUIRED), [*ids[:-3], vocabulary.format.turn_end])
    broken = engine.add("breaks", admitted(vocabulary, REQUIRED), [*ids[:-3], vocabulary.format.turn_end])
    engine.add("good", admitted(vocabulary, REQUIRED), ids)
    for failing, error in ((request, SchemaTooCostly("", "", "", budget="b")), (broken, RuntimeError("a bug"))):
        fail_from(failing.structured_output_request, len(ids) - 3, error)
    scripts = {"good": ids} | dict.fromkeys(engine.scripts, ids)
    if speculative:
        engine.run(drafter(scripts, random.Random(4), vocabulary))
    else:
        engine.run()
    assert engine.reasons == {
        "uncompiled": "error",
        "no spec": "error",
        "uncompiled when called": "error",
        "gives up": "error",
        "breaks": "error",
        "good": "stop",
    }
    for name in ("gives up", "breaks"):
        assert set(allowed_ids(engine.rows[name][len(ids) - 3]).tolist()) == {vocabulary.format.turn_end}
    assert not engine.outputs["uncompiled"] and not engine.outputs["no spec"]
    opening = late.index(vocabulary.format.argument_begin)
    assert engine.outputs["uncompiled when called"][: opening + 1] == late[: opening + 1]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("precompile", [(), (1,), (0, 1, 2)])
def test_what_compiles_before_a_request_is_scheduled(
    config: VllmConfig, vocabulary: Vocabulary, asynchronous: bool, precompile: tuple[int, ...]
) -> None:
    """Only what was slow at admission; of the others, only what is called."""
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"properties": {name + "1": {}}}}}
        for name in ("kept", "slow", "called")
    ]
    engine = ScriptedEngine(config, asynchronous=asynchronous)
    before = engine_counters.snapshot()["totals"]["compiled"]
    ids = [*render_tool_calls([ToolCall("called", 0, "{}")], vocabulary), vocabulary.format.turn_end]
    request = engine.add("a", admitted(vocabulary, REQUIRED | {"tools": tools}, precompile=precompile), ids)
    assert request.structured_output_request._grammar.result(timeout=60)
    assert engine_counters.snapshot()["totals"]["compiled"] - before == len(precompile)
    engine.run()
    assert engine.reasons == {"a": "stop"}
    assert engine_counters.snapshot()["totals"]["compiled"] - before == len({*precompile, 2})


def test_a_draft_that_cannot_be_taken_back_costs_its_own_request(vocabulary: Vocabulary) -> None:
    """Else masks would go on from where the draft ended."""

    class Failing(ToolCallMatcher):
        __slots__ = ()

        def rollback(self, count: int) -> None:
            if count:
                raise SchemaTooCostly("", "", "", budget="b")

    matcher = Failing(Compiler(vocabulary).compile(ToolCallSpec.from_openai(REQUIRED)))
    stop = vocabulary.format.turn_end
    grammar = ToolCallGrammar(matcher, TokenSet((stop,), vocabulary.size), "a")
    assert grammar.draft(DRAFTS) == []
    assert matcher.num_tokens > 0, "nothing was drafted"
    bitmask = torch.zeros((1, words_per_row(vocabulary.size)), dtype=torch.int32)
    grammar.fill_bitmask(bitmask, 0)
    assert allowed_ids(bitmask[0].numpy()).tolist() == [stop]
    assert not grammar.accept_tokens("a", [stop])
