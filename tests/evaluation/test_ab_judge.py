"""The judge of one answer: its problem, its counts, and success as the vendor verifier counts it."""

import json
from typing import Any

import pytest

from constrained_k2.evaluation.answer import FAILURES, Record
from constrained_k2.evaluation.judge import Counts, Judgement, is_accepted, is_successful_tool_call, judge
from constrained_k2.evaluation.sample import read_sample
from constrained_k2.formats.kimi_k3 import KIMI_K3
from tests.evaluation.fake_endpoint import GOOD_CALL, WEATHER, body
from tests.kit.tools import tool


def call(arguments: Any, name: str = "get_weather", index: int = 0, call_id: str | None = None) -> tuple[str, str, str]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return (f"functions.{name}:{index}" if call_id is None else call_id, name, text)


def judged(*calls: tuple[str, str, str], said: Any = (), **fields: Any) -> Judgement:
    """The judgement of an answer to a request with these fields; ``said`` are further fields of the record."""
    record: dict[str, Any] = {"status": "success", "finish_reason": "tool_calls", "calls": calls} | dict(said)
    return judge(read_sample(body(**fields), 1), Record("k", 0, **record))


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


OTHER = ("functions.other:1", "other", "{}")
NOPE = (("functions.nope:0", "nope", "{}"), ("functions.other:1", "other", "["))
AWKWARD = [tool("a-b.c", {}), {"type": "function", "function": {"name": "plain"}}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CITIES = [{"name": "get_weather", "accepted": {"city": cities}} for cities in (["Oslo", "Rome"], ["Oslo"])]
DAYS, UNIT = {"city": "Oslo", "days": 2}, {"city": "Rome", "unit": "c"}
TWO = {"expected": {"calls": [{"name": "get_weather", "arguments": each} for each in (DAYS, UNIT)]}}
UNFINISHED = [call('{"city": "Os')]  # this package's server reports "length" for arguments that are not valid JSON


def row(names: str, calls: Any, values: Any, fields: Any = (), **said: Any) -> Any:
    """Some calls, the fields of the request and of the record, and counts by name."""
    return calls, dict(fields), said, dict(zip(names.split(), values, strict=True))


def cut(limit: int | None, tokens: int | None, *values: int) -> Any:
    names = "truncated calls due finish_tool_calls successful_tool_call valid in_form"
    said = {"max_tokens": limit, "completion_tokens": tokens, "finish_reason": "length"}
    return row(names, UNFINISHED, (*values, 0, 0, 0), {"tool_choice": "required"}, **said)


def required(calls: Any, served: int) -> Any:
    return row("due served right truncated", calls, (1, served, served, 0), {"tool_choice": "required"})


def against(arguments: Any, *values: int) -> Any:
    names = "tool_match argument_match order_match optional_written expected ordered optional_due"
    return row(names, [call(each, index=at) for at, each in enumerate(arguments)], (*values, 1, 1, 2), TWO)


def asked(expected: Any, calls: Any, values: Any, **said: Any) -> Any:
    """An agent runs valid calls of declared functions. Without an expectation none is counted."""
    fields: dict[str, Any] = {} if expected is None else {"expected": {"calls": expected}}
    fields["tools"] = [WEATHER, tool("other")]
    return row("executable unasked declined_calls declined_due", calls, values, fields, **said)


def triggered(official: str, finish: str, name: str) -> Any:
    """Triggers are counted by finish_reason and reference."""
    calls = [call(OSLO)] if finish == "tool_calls" else []
    values = [int(each == name) for each in ("tp", "fp", "fn", "tn")]
    return row("tp fp fn tn", calls, values, {"official_finish_reason": official}, finish_reason=finish)


@pytest.mark.parametrize(
    ("calls", "fields", "said", "counts"),
    [
        cut(100, 99, 0, 1, 1, 1),
        cut(100, 100, 1, 0, 0, 0),
        cut(None, 9, 1, 0, 0, 0),
        cut(9, None, 1, 0, 0, 0),
        cut(None, None, 1, 0, 0, 0),
        required([call(OSLO)], 1),
        required([], 0),
        required([call(OSLO, index=1)], 0),
        required([call(OSLO, name="nope")], 0),
        required([call("{")], 0),
        required([call("[]")], 0),
        against([DAYS, UNIT], 1, 1, 1, 2),
        against([UNIT, DAYS], 1, 1, 1, 0),
        against([DAYS, {"city": "Rome"}], 1, 0, 1, 1),
        against([DAYS | {"days": 2.0}, UNIT], 1, 1, 1, 2),
        against([DAYS | {"unit": "c"}, UNIT], 1, 0, 1, 2),
        against([DAYS], 0, 0, 0, 1),
        against([], 0, 0, 0, 0),
        # As many right pairs as there can be.
        row("argument_match", [call(OSLO), call({"city": "Rome"}, index=1)], [1], {"expected": {"calls": CITIES}}),
        row(
            "awkward_calls awkward_right empty_calls empty_valid calls declared decoded valid",
            [call({}, name="a-b.c"), call({"x": 1}, name="plain", index=1), call([], name="plain", index=2)],
            (1, 1, 3, 2, 3, 3, 2, 2),
            {"tools": AWKWARD},
        ),
        asked(ASKED, [GOOD_CALL], (1, 0, 0, 0)),
        asked(ASKED, [GOOD_CALL, OTHER], (2, 1, 0, 0)),
        asked([], [GOOD_CALL], (1, 1, 0, 0)),
        asked(ASKED, NOPE, (0, 0, 0, 0)),
        asked(None, [GOOD_CALL], (0, 0, 0, 0), declined=True),
        asked([], [], (0, 0, 1, 1), declined=True),
        asked(ASKED, [], (0, 0, 1, 0), declined=True),
        asked(ASKED, [GOOD_CALL], (1, 0, 1, 1), declined=True),
        triggered("tool_calls", "tool_calls", "tp"),
        triggered("stop", "tool_calls", "fp"),
        triggered("tool_calls", "stop", "fn"),
        triggered("length", "stop", "tn"),
        triggered("tool_calls", "length", "fn"),
        # A named function's reason says nothing of a trigger.
        row("right served tp fp fn tn", [call(OSLO)], (1, 1, 0, 0, 0, 0), {"tool_choice": NAMED}, finish_reason="stop"),
        row("tn", [call(OSLO)], [1], {"tool_choice": NAMED, "official_finish_reason": "stop"}, finish_reason="stop"),
    ],
)
def test_counts(calls: Any, fields: Any, said: Any, counts: dict[str, int]) -> None:
    found = judged(*calls, said=said, **fields)
    assert {name: getattr(found.counts, name) for name in counts} == counts
    assert (found.kind == "truncated") == found.counts.truncated


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
