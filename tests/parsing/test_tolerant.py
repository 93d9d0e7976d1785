"""The tolerant level: what unconstrained models write, beside the tables of test_parsing.py."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constrained_k2 import InvalidRequest, ToolCall, ToolCallParser, Vocabulary, parse_completion, render_tool_calls
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.parsing import PARSING_LEVELS, Completion
from constrained_k2.parsing.arguments import ArgumentsText, recover, refuse_constant
from constrained_k2.parsing.events import (
    CallFinished,
    CallStarted,
    ContentDelta,
    ReasoningDelta,
    RecoveryUsed,
    UndeclaredCall,
)
from constrained_k2.parsing.parser import ParsingLevel
from constrained_k2.request.spec import Tool
from tests.kit.budget import tries
from tests.parsing.transcripts import ids_of_text

BYTES, K3 = Vocabulary.of_bytes(), Vocabulary.of_bytes(KIMI_K3)


def in_call(vocabulary: Vocabulary, arguments: str) -> list[int]:
    """The tokens of a call of ``f`` with these arguments."""
    call = f'<|open|>call tool="f" index="1"<|sep|>{arguments}<|close|>call<|sep|>'
    if vocabulary is BYTES:
        call = f"<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
    return ids_of_text(call, vocabulary)


A = '<|open|>argument key="a" type="%s"<|sep|>%s<|close|>argument<|sep|>'


@pytest.mark.parametrize(
    ("vocabulary", "written", "recovered", "right"),
    [(BYTES, '{"a": 1,}', '{"a": 1}', '{"a": 1}'), (K3, A % ("object", "{'b': 1}"), '{"a": {"b": 1}}', A % ("number", "1"))],
    ids=["Kimi K2", "Kimi K3"],
)  # fmt: skip
def test_the_written_arguments_stay_beside_the_recovered_ones(
    vocabulary: Vocabulary, written: str, recovered: str, right: str
) -> None:
    (call,) = parse_completion(in_call(vocabulary, written), vocabulary, level="tolerant").tool_calls
    assert (call.arguments, call.written) == (recovered, written)
    (call,) = parse_completion(in_call(vocabulary, right), vocabulary, level="tolerant").tool_calls
    assert call.written is None


@pytest.mark.parametrize("end", ["", "\n"])
def test_complete_arguments_are_a_call_if_the_model_stopped(end: str) -> None:
    """Not if it was cut off, nor at the strict level, nor with incomplete arguments."""
    whole = f'<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{{"a": 1}}{end}'
    ids = ids_of_text(whole, BYTES)
    (call,) = parse_completion(ids, BYTES, level="tolerant", stopped=True).tool_calls
    assert (call.arguments, call.recoveries) == (f'{{"a": 1}}{end}', ("no_call_end",))
    others: list[tuple[ParsingLevel, bool]] = [("tolerant", False), ("strict", True), ("strict", False)]
    for level, stopped in others:
        read = parse_completion(ids, BYTES, level=level, stopped=stopped)
        assert (len(read.tool_calls), len(read.cut_calls)) == (0, 1)
    assert not parse_completion(ids[: -1 - len(end)], BYTES, level="tolerant", stopped=True).tool_calls


def test_undeclared_names_are_reported_at_both_levels() -> None:
    ids = render_tool_calls([ToolCall("f", 0, "{}"), ToolCall("g", 1, "{}")], BYTES)
    for level in PARSING_LEVELS:
        read = parse_completion(ids, BYTES, level=level, tools=[Tool("f")])
        assert [call.undeclared for call in read.tool_calls] == [False, True]
        assert not any(call.undeclared for call in parse_completion(ids, BYTES, level=level).tool_calls)
        parser = ToolCallParser(BYTES, level=level, tools=[Tool("f")])
        assert [event for event in parser.feed(ids) if isinstance(event, UndeclaredCall)] == [UndeclaredCall(1)]


def test_text_is_buffered_only_as_long_as_it_may_become_a_marker() -> None:
    parser = ToolCallParser(BYTES, level="tolerant")
    assert parser.feed(BYTES.encode("a <|tool_c")) == [ContentDelta("a"), ContentDelta(" ")]
    assert parser.feed(BYTES.encode("u")) == [ContentDelta("<|tool_cu")]
    assert parser.feed(BYTES.encode("<|tool")) == []
    assert parser.finish() == [ContentDelta("<|tool")]


def test_text_after_a_spelled_marker_is_not_buffered_for_long() -> None:
    parser = ToolCallParser(BYTES, level="tolerant")
    assert parser.feed(BYTES.encode("<|tool_call_begin|> is how a call begins.")) == []
    (event,) = parser.feed(BYTES.encode("\nT"))
    assert event == ContentDelta("<|tool_call_begin|> is how a call begins.\nT")
    assert parser.feed(BYTES.encode("h")) == [ContentDelta("h")]


CALL = "<|tool_call_begin|>functions.f:%d<|tool_call_argument_begin|>{}<|tool_call_end|>"


@pytest.mark.parametrize(
    ("wire_format", "before", "call", "started"),
    [
        (KIMI_K2, "<|tool_calls_section_begin|>", CALL % 1, 0),
        (KIMI_K2, f"<|tool_calls_section_begin|>{CALL % 0}", CALL % 1, 1),
        (
            KIMI_K3,
            "<|close|>response<|sep|><|open|>tools<|sep|>",
            '<|open|>call tool="f" index="1"<|sep|><|close|>call<|sep|>',
            0,
        ),
    ],
    ids=["Kimi K2", "Kimi K2 behind a call", "Kimi K3"],
)
def test_blanks_between_calls_are_not_buffered_for_ever(
    wire_format: WireFormat, before: str, call: str, started: int
) -> None:
    """A model that loops writes nothing else, 256 of them a token."""
    vocabulary = Vocabulary.of_bytes(wire_format)
    parser = ToolCallParser(vocabulary, level="tolerant")
    parser.feed(ids_of_text(before, vocabulary))
    assert parser.feed(vocabulary.encode(" " * 4096)) == []
    events = parser.feed(vocabulary.encode(" " * 1000))
    assert "".join(event.text for event in events if isinstance(event, ContentDelta)) == " " * 5096
    assert CallStarted(started, "f", 1) in parser.feed(ids_of_text(call, vocabulary))


def test_json_is_shown_as_it_comes() -> None:
    parser = ToolCallParser(BYTES, level="tolerant")
    parser.feed(ids_of_text("<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>", BYTES))
    late = [
        character
        for character in '{"a": [1, 2, {"b,}": "x, ]\\"\'TFN"}], "c": null}'
        if not parser.feed(BYTES.encode(character))
    ]
    assert late == [",", " "] * 3  # the commas outside strings, until it is seen what follows
    assert parser.feed([BYTES.format.call_end]) == [CallFinished(0)]


@pytest.mark.parametrize("level", ["lenient", "", None, 3])
def test_unknown_levels(level: Any) -> None:
    with pytest.raises(InvalidRequest, match="unknown level"):
        ToolCallParser(BYTES, level=level)


SECTION = "<|tool_calls_section_begin|>%s<|tool_calls_section_end|>"
K3_CALL = '<|open|>call tool="f" index="1"<|sep|><|close|>call<|sep|>'
K3_ANSWER = "<|close|>think<|sep|><|open|>response<|sep|>"
K3_CALLS = f"<|open|>tools<|sep|>{K3_CALL}<|close|>tools<|sep|>"


@pytest.mark.parametrize("level", PARSING_LEVELS)
@pytest.mark.parametrize(
    ("vocabulary", "text"),
    [
        (BYTES, f"<think>Hm.</think>Look:{CALL % 0} or not"),
        (BYTES, f"<think>Hm.{CALL % 0}</think>Look: or not"),  # in the reasoning
        (BYTES, f"<think>Hm.</think>Look: or not{SECTION % (CALL % 0)}"),
        (BYTES, f"<think>Hm.</think>Look:{SECTION % (CALL % 0 + ' noise ' + CALL % 1)} or not"),
        (BYTES, "<think>Hm.</think>Look: or not<|tool_call_begin|>functions.f:0"),  # cut off
        (BYTES, "<think>Hm.</think>Look: or not<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"),
        (BYTES, "<think>Hm.<|tool_call_begin|>f</think>Look: or not"),
        (K3, f"Hm.{K3_ANSWER}Look: or not<|close|>response<|sep|>{K3_CALLS}"),
        (K3, f"Hm.{K3_ANSWER}Look:{K3_CALLS}<|open|>response<|sep|> or not"),
        (K3, f"Hm.{K3_ANSWER}Look: or not{K3_CALL}"),
        (K3, f"Hm.{K3_ANSWER}Look: or not{K3_CALLS[:60]}"),
        (K3, f"Hm.{K3_ANSWER}Look: or not{K3_CALLS.replace('<|close|>call', '<|close|>broken')}"),
    ],
)
def test_where_no_call_is_wanted_none_is_shown(vocabulary: Vocabulary, text: str, level: ParsingLevel) -> None:
    ids = ids_of_text(text, vocabulary)
    for size in (1, 3, len(ids)):
        parser = ToolCallParser(vocabulary, level=level, calls=False, in_reasoning=vocabulary is K3)
        events = [event for at in range(0, len(ids), size) for event in parser.feed(ids[at : at + size])]
        events += parser.finish()
        assert {type(event) for event in events} == {ReasoningDelta, ContentDelta}
        shown = Completion.from_events(events)
        assert (shown.reasoning, shown.content) == ("Hm.", "Look: or not")


json_texts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
).flatmap(
    lambda value: st.builds(
        lambda ascii_, indent: json.dumps(value, ensure_ascii=ascii_, indent=indent),
        st.booleans(),
        st.none() | st.integers(0, 2),
    )
)


@settings(max_examples=tries(100, fast=25, everything=400))
@given(json_texts, st.data())
def test_json_is_never_touched(written: str, data: st.DataObject) -> None:
    assert recover(written) == (written, ())
    written = f"{data.draw(st.sampled_from(['', ' ', chr(10)]))}{written}"
    try:
        written.encode()
    except UnicodeEncodeError:
        return
    call = ToolCall("f", 0, written)
    assert parse_completion(render_tool_calls([call], BYTES), BYTES, level="tolerant").tool_calls == (call,)


@given(st.text("{}[]\"'\\,: \n1aTrueNone", max_size=40), st.integers(0, 5))
def test_a_recovery_makes_an_object_or_changes_nothing(written: str, size: int) -> None:
    recovered, recoveries = recover(written)
    if recoveries:
        assert isinstance(json.loads(recovered), dict)
    else:
        assert recovered == written
    ids = render_tool_calls([ToolCall("f", 0, written)], BYTES)
    completion = parse_completion(ids, BYTES, level="tolerant")
    try:
        json.loads(recovered, parse_constant=refuse_constant)
    except ValueError:
        assert not completion.tool_calls and [cut.arguments for cut in completion.cut_calls] == [written]
        return
    (call,) = completion.tool_calls
    assert call.arguments == recovered
    assert call.recoveries == recoveries


def test_blanks_after_a_comma_are_read_in_time() -> None:
    """50 MB are buffered until the next character; copying them at each step would copy 125 GB."""
    arguments = ArgumentsText()
    assert arguments.feed('{"a": 1,') == '{"a": 1'
    for _ in range(5_000):
        assert not arguments.feed(" " * 10_000)
    assert arguments.feed('"b": 2}').startswith(", ")
    assert arguments.finish() == ("", ())


def test_recoveries_of_a_stream_come_with_their_call(small_vocabulary: Vocabulary) -> None:
    parser = ToolCallParser(small_vocabulary, level="tolerant")
    text = "<|tool_call_begin|>search:2<|tool_call_argument_begin|>"
    events = parser.feed(ids_of_text(text, small_vocabulary))
    assert events == [CallStarted(0, "search", 2), RecoveryUsed(0, "no_section"), RecoveryUsed(0, "bare_id")]
    parser = ToolCallParser(K3, level="tolerant")
    assert parser.feed(ids_of_text('hm<|open|>call tool="f" index="1"', K3))[-1] == ContentDelta("m")
    assert parser.feed(ids_of_text("<|sep|>", K3)) == [CallStarted(0, "f", 1), RecoveryUsed(0, "no_section")]
    parser.feed(ids_of_text('<|open|>argument key="a" type="string"<|sep|>x', K3))
    assert all(parser.feed([byte]) for byte in b"yz <|close|>argument<|sep|>"), "strings are shown as they come"
    end = "<|close|>argument<|sep|><|close|>call<|sep|>"
    assert parser.feed(ids_of_text(end, K3))[-1] == CallFinished(0)
