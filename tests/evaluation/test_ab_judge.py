"""The judge of one answer: its problem, its counts, and success as the vendor verifier counts it."""

import json
from typing import Any

import pytest

from constrained_k2.evaluation.answer import FAILURES, ChatAnswer, Record
from constrained_k2.evaluation.judge import Counts, Judgement, is_accepted, is_successful_tool_call, judge
from constrained_k2.evaluation.sample import read_sample
from constrained_k2.formats.kimi_k3 import KIMI_K3
from tests.evaluation.fake_endpoint import GOOD_CALL, WEATHER, body
from tests.kit.tools import tool


def call(arguments: Any, name: str = "get_weather", index: int = 0, call_id: str | None = None) -> tuple[str, str, str]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return (f"functions.{name}:{index}" if call_id is None else call_id, name, text)


def judged(*calls: tuple[str, str, str], finish: str = "tool_calls", **fields: Any) -> Judgement:
    return judge(read_sample(body(**fields), 1), Record("k", 0, "success", finish_reason=finish, calls=calls))


def city(schema: Any) -> dict[str, Any]:
    """The field of a request whose only tool, ``f``, takes a city of this schema."""
    return {"tools": [tool("f", {"type": "object", "properties": {"city": schema}})]}


OSLO = {"city": "Oslo"}
ASKED = [{"name": "get_weather", "arguments": OSLO}]
EARLIER = [
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": GOOD_CALL[0], "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}]},
    {"role": "user", "content": "And now?"},
]  # fmt: skip


@pytest.mark.parametrize(
    ("calls", "fields", "kind"),
    [
        ([call(OSLO)], {}, ""),
        ([call(OSLO), call(OSLO, index=1)], {}, ""),
        ([call({"city": 3})], {}, "invalid_arguments"),
        ([call({})], {}, "invalid_arguments"),
        ([call('{"city": ')], {}, "invalid_json"),
        ([call("[]")], {}, "invalid_json"),
        ([call('{"city": NaN}')], {}, "invalid_json"),
        ([call("[" * 100_000)], {}, "invalid_json"),
        ([call(OSLO, name="get_wether")], {}, "undeclared"),
        ([call(OSLO, name="")], {}, "undeclared"),
        ([call(OSLO, call_id="")], {}, "missing_id"),
        ([call(OSLO, call_id="call_1")], {}, "wrong_id"),
        ([call(OSLO, index=1)], {}, "wrong_id"),
        ([call(OSLO), call(OSLO)], {}, "wrong_id"),
        ([call(OSLO), call(OSLO, index=1)], {"parallel_tool_calls": False}, "too_many_calls"),
        ([call(OSLO)], {"tool_choice": "none"}, "too_many_calls"),
        ([], {"tool_choice": "required"}, "missing_call"),
        ([], {}, ""),
        ([call(OSLO)], {"expected": {"calls": []}}, "unexpected_call"),
        ([call(OSLO, index=1)], {"messages": EARLIER}, ""),
        ([call(OSLO, index=0)], {"messages": EARLIER}, "wrong_id"),
        # Schemas are judged as they are read.
        ([call({"city": None}, name="f")], city({"type": "string", "nullable": True}), ""),
        ([call(OSLO, name="f")], city({"type": "STRING", "nullable": True}), ""),
        ([call({"city": 7}, name="f")], city({"type": "string", "nullable": True}), "invalid_arguments"),
        ([call({"city": None}, name="f")], city({"type": "string"}), "invalid_arguments"),
    ],
)
def test_what_is_wrong_with_an_answer(calls: Any, fields: Any, kind: str) -> None:
    found = judged(*calls, **fields)
    assert found.kind == kind
    assert found.counts.right == (kind == "")
    assert bool(found.problems) == bool(kind)


@pytest.mark.parametrize(
    ("ids", "kinds"),
    [
        (("functions.get_weather:0", "functions.get_weather:1"), []),
        (("chatcmpl-tool-a", "chatcmpl-tool-b"), []),
        (("x", "x"), ["wrong_id"]),
        (("", "x"), ["missing_id"]),
        (("", ""), ["missing_id", "missing_id"]),
    ],
)
def test_where_calls_have_no_ids_the_server_may_choose_them(ids: tuple[str, str], kinds: list[str]) -> None:
    calls = tuple(call(OSLO, call_id=call_id) for call_id in ids)
    record = Record("k", 0, "success", finish_reason="tool_calls", calls=calls)
    found = judge(read_sample(body(), 1), record, KIMI_K3)
    assert [problem.partition(":")[0] for problem in found.problems] == kinds
    assert found.counts.numbered == 2 - len(kinds)
    assert found.counts.valid == 2


@pytest.mark.parametrize("failure", FAILURES)
def test_what_failed_is_never_a_success(failure: str) -> None:
    record = Record("k", 0, "failed", failure, "words", finish_reason="tool_calls", calls=(call(OSLO),))
    assert judge(read_sample(body(), 1), record) == (Counts(requests=1), failure, (f"{failure}: words",))


@pytest.mark.parametrize(
    ("limit", "tokens", "is_cut"),
    [(100, 99, False), (100, 100, True), (None, 9, True), (9, None, True), (None, None, True)],
)
def test_a_call_that_has_ended_is_not_truncated(limit: int | None, tokens: int | None, *, is_cut: bool) -> None:
    """This package's server reports "length" for a call whose arguments are not valid JSON."""
    one = call('{"city": "Os')
    record = Record("k", 0, "success", finish_reason="length", calls=(one,), completion_tokens=tokens, max_tokens=limit)
    found = judge(read_sample(body(tool_choice="required"), 1), record)
    counts, rest = found.counts, 1 - is_cut
    assert (found.kind == "truncated", counts.truncated, counts.calls, counts.due) == (is_cut, is_cut, rest, rest)
    assert (counts.finish_tool_calls, counts.successful_tool_call, counts.valid, counts.in_form) == (rest, 0, 0, 0)


@pytest.mark.parametrize(
    ("calls", "served"),
    [
        ([call(OSLO)], 1),
        ([], 0),
        ([call(OSLO, index=1)], 0),
        ([call(OSLO, name="nope")], 0),
        ([call("{")], 0),
        ([call("[]")], 0),
    ],
)
def test_a_required_call_is_served_if_it_is_right_in_form(calls: Any, served: int) -> None:
    counts = judged(*calls, tool_choice="required").counts
    assert (counts.due, counts.served, counts.right, counts.truncated) == (1, served, served, 0)


EXPECTED = {
    "calls": [
        {"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}},
        {"name": "get_weather", "arguments": {"city": "Rome", "unit": "c"}},
    ]
}


@pytest.mark.parametrize(
    ("arguments", "counts"),
    [
        # tool_match, argument_match, order_match, optional_written of 2
        ([{"city": "Oslo", "days": 2}, {"city": "Rome", "unit": "c"}], (1, 1, 1, 2)),
        ([{"city": "Rome", "unit": "c"}, {"city": "Oslo", "days": 2}], (1, 1, 1, 0)),
        ([{"city": "Oslo", "days": 2}, {"city": "Rome"}], (1, 0, 1, 1)),
        ([{"city": "Oslo", "days": 2.0}, {"city": "Rome", "unit": "c"}], (1, 1, 1, 2)),
        ([{"city": "Oslo", "days": 2, "unit": "c"}, {"city": "Rome", "unit": "c"}], (1, 0, 1, 2)),
        ([{"city": "Oslo", "days": 2}], (0, 0, 0, 1)),
        ([], (0, 0, 0, 0)),
    ],
)
def test_against_expected_calls(arguments: Any, counts: Any) -> None:
    found = judged(*(call(value, index=location) for location, value in enumerate(arguments)), expected=EXPECTED).counts
    assert (found.tool_match, found.argument_match, found.order_match, found.optional_written) == counts
    assert (found.expected, found.ordered, found.optional_due) == (1, 1, 2)


def test_as_many_right_pairs_as_there_can_be() -> None:
    accepted = [{"name": "get_weather", "accepted": {"city": cities}} for cities in (["Oslo", "Rome"], ["Oslo"])]
    found = judged(call({"city": "Oslo"}), call({"city": "Rome"}, index=1), expected={"calls": accepted})
    assert found.counts.argument_match == 1


@pytest.mark.parametrize(
    ("value", "accepted", "lenient", "same"),
    [
        (1, [1.0], False, True), (True, [1], False, False), (1, [True], False, False), (None, [None], False, True),
        (0, [None], False, False), ("a", ["A"], False, False), ("New York, NY", ["new york ny"], True, True),
        ([1, 2], [[1, 2]], False, True), ([2, 1], [[1, 2]], False, False), ({"a": 1}, [{"a": 1}], False, True),
        ({"a": 1}, [{"a": [1, 2]}], True, True), ({}, [{"a": [1, ""]}], True, True), ({}, [{"a": [1]}], True, False),
        ({"b": 1}, [{"a": [1]}], True, False), ("x", [], True, False), ([True], [[1]], True, False),
    ],
)  # fmt: skip
def test_right_values(value: Any, accepted: Any, lenient: bool, same: bool) -> None:
    assert is_accepted(value, accepted, lenient=lenient) is same


def test_awkward_names_and_empty_parameters_are_counted() -> None:
    tools = [tool("a-b.c", {}), {"type": "function", "function": {"name": "plain"}}]
    calls = (call({}, name="a-b.c"), call({"x": 1}, name="plain", index=1), call([], name="plain", index=2))
    found = judged(*calls, tools=tools).counts
    assert (found.awkward_calls, found.awkward_right, found.empty_calls, found.empty_valid) == (1, 1, 3, 2)
    assert (found.calls, found.declared, found.decoded, found.valid) == (3, 3, 2, 2)


OTHER = ("functions.other:1", "other", "{}")
NOPE = (("functions.nope:0", "nope", "{}"), ("functions.other:1", "other", "["))


@pytest.mark.parametrize(
    ("expected", "calls", "declined", "counts"),
    [
        # executable, unasked, declined_calls, declined_due
        (ASKED, [GOOD_CALL], False, (1, 0, 0, 0)),
        (ASKED, [GOOD_CALL, OTHER], False, (2, 1, 0, 0)),
        ([], [GOOD_CALL], False, (1, 1, 0, 0)),
        (ASKED, NOPE, False, (0, 0, 0, 0)),
        (None, [GOOD_CALL], True, (0, 0, 0, 0)),
        ([], [], True, (0, 0, 1, 1)),
        (ASKED, [], True, (0, 0, 1, 0)),
        (ASKED, [GOOD_CALL], True, (1, 0, 1, 1)),
    ],
)
def test_calls_that_were_not_asked_for_and_declined_ones(
    expected: Any, calls: Any, counts: Any, *, declined: bool
) -> None:
    """An agent runs valid calls of declared functions. Without an expectation none is counted."""
    fields: dict[str, Any] = {} if expected is None else {"expected": {"calls": expected}}
    sample = read_sample(body(tools=[WEATHER, tool("other")], **fields), 1)
    found = judge(sample, Record.of(ChatAnswer("tool_calls", calls=tuple(calls), declined=declined))).counts
    assert (found.executable, found.unasked, found.declined_calls, found.declined_due) == counts


@pytest.mark.parametrize(
    "schema", [{"type": 7}, {"$ref": "https://example.com/s.json"}, {"properties": {"city": {"$ref": "#/no"}}}]
)
def test_a_schema_that_cannot_be_used_is_said_to_be_one(schema: Any) -> None:
    found = judged(call(OSLO, name="f"), tools=[tool("f", schema)])
    assert (found.kind, found.counts.judged, found.counts.successful_tool_call) == ("unjudged", 0, 0)


TOOLS = {"f": WEATHER["function"]["parameters"], "empty": {}, "none": None}


@pytest.mark.parametrize(
    ("calls", "successful"),
    [
        ([("x", "f", '{"city": "a"}')], True),  # ids do not count
        ([("", "f", '{"city": "a"}'), ("", "f", '{"city": "b"}')], True),
        ([("", "f", '{"city": "a"}'), ("", "f", "{}")], False),
        ([("", "f", "{")], False),
        ([("", "g", "{}")], False),
        ([("", "empty", "{}")], False),  # it treats an empty schema as none
        ([("", "none", "{}")], False),
        ([], False),
    ],
)
def test_success_as_the_vendor_verifier_counts_it(calls: Any, successful: bool) -> None:
    assert is_successful_tool_call(tuple(calls), TOOLS) is successful


@pytest.mark.parametrize(
    ("official", "finish", "field"),
    [
        ("tool_calls", "tool_calls", "tp"),
        ("stop", "tool_calls", "fp"),
        ("tool_calls", "stop", "fn"),
        ("length", "stop", "tn"),
        ("tool_calls", "length", "fn"),
    ],
)
def test_trigger_counts_go_by_finish_reason_and_reference(official: str, finish: str, field: str) -> None:
    calls = (call(OSLO),) if finish == "tool_calls" else ()
    counts = judged(*calls, finish=finish, official_finish_reason=official).counts
    assert {name: getattr(counts, name) for name in ("tp", "fp", "fn", "tn")} == {
        "tp": 0,
        "fp": 0,
        "fn": 0,
        "tn": 0,
        field: 1,
    }


def test_a_named_functions_reason_says_nothing_of_a_trigger() -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    counts = judged(call(OSLO), finish="stop", tool_choice=choice).counts
    assert (counts.right, counts.served, counts.tp + counts.fp + counts.fn + counts.tn) == (1, 1, 0)
    given = judged(call(OSLO), finish="stop", tool_choice=choice, official_finish_reason="stop").counts
    assert given.tn == 1
