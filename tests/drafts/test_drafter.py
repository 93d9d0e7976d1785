"""Drafts are legal, leave the matcher alone, and are right often enough to be worth it."""

import json
import threading
from typing import Any
from unittest import mock

from constrained_k2 import Compiler, ToolCallSpec, Vocabulary
from constrained_k2.request.strictness import StrictPolicy
from constrained_k2.turn.drafts.drafter import Drafter
from scripts.bundled_samples.ordinary import TOOLS

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
    markers = vocabulary.format
    ids = [markers.section_begin]
    for index, (name, arguments) in enumerate(CALLS):
        call_id = vocabulary.encode(f"functions.{name}:{first + index}")
        ids += [markers.call_begin, *call_id, markers.argument_begin, *vocabulary.encode(json.dumps(arguments))]
        ids.append(markers.call_end)
    return [*ids, markers.section_end, markers.turn_end]


def test_text_is_not_guessed(compiler: Compiler) -> None:
    matcher = compiler.compile(spec(tool_choice="auto")).matcher()
    assert Drafter(matcher).draft(8) == []
    assert matcher.accept_tokens(compiler.vocabulary.encode("Let me look"))
    assert Drafter(matcher).draft(8) == []
    assert matcher.accept_tokens([compiler.vocabulary.format.section_begin])
    assert Drafter(matcher).draft(8)[0] == compiler.vocabulary.format.call_begin


def steps_of(matcher: Any, ids: list[int], limit: int) -> int:
    drafter, position, steps = Drafter(matcher), 0, 0
    while position < len(ids):
        drafts = drafter.draft(limit)
        right = 0
        while right < len(drafts) and position + right < len(ids) and drafts[right] == ids[position + right]:
            right += 1
        taken = ids[position : position + right + 1]
        assert matcher.accept_tokens(taken)
        position, steps = position + len(taken), steps + 1
    return steps


def test_most_of_a_call_is_drafted(compiler: Compiler) -> None:
    ids = turn(compiler.vocabulary, first=3)
    steps = steps_of(compiler.compile(spec(first_index=3)).matcher(), ids, 8)
    assert steps < 0.6 * len(ids)


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
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    matcher = compiler.compile(spec(tools=tools), check=False).matcher()
    markers = compiler.vocabulary.format
    call_id = compiler.vocabulary.encode("functions.f:0")
    begun = threading.Event()
    with mock.patch.object(compiler, "precompile", side_effect=lambda *_: begun.set()):
        assert Drafter(matcher).draft(32) == [markers.section_begin, markers.call_begin, *call_id]
    assert begun.is_set()
    assert matcher.accept_tokens([markers.section_begin, markers.call_begin, *call_id])
    assert not matcher.is_compiled
    assert matcher.accept_tokens([markers.argument_begin])
    matcher.rollback(1)
    assert matcher.is_compiled
    assert Drafter(matcher).draft(32)[0] == markers.argument_begin


def test_a_schema_that_is_not_enforced_may_have_lone_surrogates() -> None:
    vocabulary = Vocabulary.of_bytes()
    schema = {"type": "object", "properties": {"a": {"enum": ["\ud800"]}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    policy = StrictPolicy(max="json_object")
    matcher = Compiler(vocabulary, policy=policy).compile(spec(tools=[tool])).matcher()
    markers = vocabulary.format
    call_id = vocabulary.encode("functions.f:0")
    start = [markers.section_begin, markers.call_begin, *call_id, markers.argument_begin, *vocabulary.encode("{")]
    assert matcher.accept_tokens(start)
    assert bytes(Drafter(matcher).draft(6)) == b'"a": "'
