"""Drafts are legal, leave the matcher alone, and are right often enough to be worth it."""

import json
import threading
from collections.abc import Sequence
from itertools import chain
from typing import Any
from unittest import mock

import pytest

from benchmarks.drafts.formats import Drafted
from constrained_k2 import Compiler, ToolCall, ToolCallMatcher, ToolCallSpec, Vocabulary
from constrained_k2.prompts.xtml.turn import render_turn
from constrained_k2.request.strictness import StrictPolicy
from constrained_k2.turn.drafts.drafter import Drafter
from scripts.bundled_samples.ordinary import TOOLS
from tests.kit.tools import tool
from tests.kit.turns import call, call_start, ids_of, is_k3, matcher_of, opening, section_end, turn_end

CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("get_weather", {"city": "Beijing", "days": 3}),
    ("search-flights", {"origin": "BER", "destination": "HND", "depart": "2026-03-07"}),
    ("convert_currency", {"amount": 250, "source": "EUR", "target": "JPY"}),
    ("list_open_tabs", {}),
    ("run_query", {"table": "orders", "filters": [{"column": "country", "op": "=", "value": "NO"}], "limit": 10}),
)


def spec(**fields: Any) -> ToolCallSpec:
    return ToolCallSpec.from_openai({"tools": list(TOOLS), "tool_choice": "required"} | fields)


def turn(vocabulary: Vocabulary, *, first: int = 0) -> list[int]:
    """The tokens of all calls, as prompts spell them."""
    if is_k3(vocabulary):
        return render_turn([ToolCall(name, 0, json.dumps(arguments)) for name, arguments in CALLS], vocabulary)
    calls = [call(vocabulary, arguments, name, first + index) for index, (name, arguments) in enumerate(CALLS)]
    return [*opening(vocabulary), *chain(*calls), *section_end(vocabulary), *turn_end(vocabulary)]


def test_text_is_not_guessed(compiler: Compiler) -> None:
    matcher = compiler.compile(spec(tool_choice="auto")).matcher()
    assert Drafter(matcher).draft(8) == []
    assert matcher.accept_tokens(compiler.vocabulary.encode("Let me look"))
    assert Drafter(matcher).draft(8) == []
    assert matcher.accept_tokens([compiler.vocabulary.format.section_begin])
    assert Drafter(matcher).draft(8)[0] == compiler.vocabulary.format.call_begin


def steps_of(matcher: ToolCallMatcher, ids: list[int], limit: int, prompt: Sequence[int] = ()) -> int:
    """The number of steps that write a turn, if the drafts are accepted up to the first wrong one."""
    drafted = Drafted()
    drafted.add(matcher, ids, limit, Drafter(matcher, prompt).draft)
    return drafted.steps


@pytest.mark.parametrize(
    ("which", "first", "limit", "share"),
    [("small_compiler", 3, 8, 0.6),
     *(pytest.param(*each, marks=pytest.mark.slow)
       for each in (("real_compiler", 3, 8, 0.6), ("k3_real_compiler", 0, 8, 0.3), ("k3_real_compiler", 0, 16, 0.25)))],
)  # fmt: skip
def test_most_of_a_call_is_drafted(
    which: str, first: int, limit: int, share: float, request: pytest.FixtureRequest
) -> None:
    compiler: Compiler = request.getfixturevalue(which)
    ids = turn(compiler.vocabulary, first=first)
    assert steps_of(compiler.compile(spec(first_index=first)).matcher(), ids, limit) < share * len(ids)


def test_a_turn_that_was_taken_back_is_followed_anew(compiler: Compiler) -> None:
    ids = turn(compiler.vocabulary)
    matcher = compiler.compile(spec()).matcher()
    drafter = Drafter(matcher)
    expected = []
    for token_id in ids:
        expected.append(drafter.draft(4))
        assert matcher.accept_tokens([token_id])
    matcher.rollback(len(ids) // 2)
    for position in range(len(ids) - len(ids) // 2, len(ids)):
        assert drafter.draft(4) == expected[position]
        assert matcher.accept_tokens([ids[position]])


def test_a_draft_waits_for_no_compilation(compiler: Compiler) -> None:
    """It ends where arguments begin whose schema has still to be compiled, and has that begun."""
    parameters = {"properties": {"never_seen_before": {"type": "integer"}}, "required": ["never_seen_before"]}
    matcher = compiler.compile(spec(tools=[tool("f", parameters)]), check=False).matcher()
    *before, last = call_start(compiler.vocabulary)
    begun = threading.Event()
    with mock.patch.object(compiler, "precompile", side_effect=lambda *_: begun.set()):
        assert Drafter(matcher).draft(32) == before
    assert begun.is_set()
    assert matcher.accept_tokens(before)
    assert not matcher.is_compiled
    assert matcher.accept_tokens([last])
    matcher.rollback(1)
    assert matcher.is_compiled
    assert Drafter(matcher).draft(32)[0] == last


def test_a_schema_that_is_not_enforced_may_have_lone_surrogates() -> None:
    vocabulary = Vocabulary.of_bytes()
    schema = {"type": "object", "properties": {"a": {"enum": ["\ud800"]}}, "required": ["a"]}
    compiler = Compiler(vocabulary, policy=StrictPolicy(max="json_object"))
    matcher = compiler.compile(spec(tools=[tool("f", schema)])).matcher()
    assert matcher.accept_tokens([*call_start(vocabulary), *vocabulary.encode("{")])
    assert bytes(Drafter(matcher).draft(6)) == b'"a": "'


@pytest.mark.parametrize(
    ("which", "thought"),
    [("small", ""), ("small", "<think>so</think>"), ("k3_small", ""), ("k3_small", "Hm<|close|>think<|sep|><|open|>response<|sep|>")],
)  # fmt: skip
def test_an_answer_in_a_form_is_drafted(which: str, thought: str, request: pytest.FixtureRequest) -> None:
    compiler: Compiler = request.getfixturevalue(f"{which}_compiler")
    report = {"type": "object", "properties": {"summary": {"type": "string"}, "certain": {"type": "boolean"}},
              "required": ["summary"], "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": report}}
    vocabulary = compiler.vocabulary
    in_reasoning = is_k3(vocabulary) and bool(thought)
    matcher = matcher_of(compiler, {"response_format": form, "thinking": True}, in_reasoning=in_reasoning)
    assert matcher.accept_tokens(ids_of(vocabulary, thought) + vocabulary.encode("{"))
    drafts = Drafter(matcher).draft(8)
    assert vocabulary.decode(drafts).startswith('"summary":')
    assert matcher.validate_tokens(drafts) == drafts
    assert matcher.accept_tokens(vocabulary.encode('"summary": "x", "certain": true}'))
    end = ids_of(vocabulary, "<|close|>response<|sep|>") if is_k3(vocabulary) else []
    assert Drafter(matcher).draft(32) == end + turn_end(vocabulary)
