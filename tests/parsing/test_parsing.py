"""The strict level, with output that only unconstrained models write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constrained_k2 import (
    MalformedCompletion,
    ToolCall,
    ToolCallParser,
    Vocabulary,
    parse_completion,
    render_tool_calls,
)
from constrained_k2.parsing import CutCall
from constrained_k2.parsing.events import ArgumentsDelta, CallCut, CallFinished, CallStarted, ContentDelta

WEATHER = ToolCall("get_weather", 0, '{"city": "Beijing"}')


def ids_of(vocabulary: Vocabulary, *parts: str) -> list[int]:
    """Encode text, and markers by the name of their field."""
    ids: list[int] = []
    for part in parts:
        marker = getattr(vocabulary.format, part, None)
        ids += [marker] if isinstance(marker, int) else vocabulary.encode(part)
    return ids


CALL = ("call_begin", "functions.get_weather:0", "argument_begin", '{"city": "Beijing"}', "call_end")


def test_a_turn_as_events(small_vocabulary: Vocabulary) -> None:
    parser = ToolCallParser(small_vocabulary)
    assert parser.feed(ids_of(small_vocabulary, "x", "section_begin", "call_begin")) == [ContentDelta("x")]
    assert parser.feed(ids_of(small_vocabulary, "functions.f:3", "argument_begin")) == [CallStarted(0, "f", 3)]
    assert parser.feed(ids_of(small_vocabulary, "{")) == [ArgumentsDelta(0, "{")]
    assert parser.feed(ids_of(small_vocabulary, "}", "call_end")) == [ArgumentsDelta(0, "}"), CallFinished(0)]
    assert parser.feed(ids_of(small_vocabulary, "section_end", "turn_end")) == []
    assert parser.finish() == []


def test_reasoning_content_and_calls(small_vocabulary: Vocabulary) -> None:
    ids = ids_of(small_vocabulary, "think_begin", "Hm. 🌦️", "think_end", "Look:", "section_begin", *CALL, "section_end")
    completion = parse_completion([*ids, small_vocabulary.format.turn_end], small_vocabulary)
    assert (completion.reasoning, completion.content) == ("Hm. 🌦️", "Look:")
    assert completion.tool_calls == (WEATHER,)


def test_reasoning_that_the_prompt_opened(small_vocabulary: Vocabulary) -> None:
    ids = ids_of(small_vocabulary, "Hm.", "section_begin", *CALL, "section_end")
    completion = parse_completion(ids, small_vocabulary, in_reasoning=True)
    assert (completion.reasoning, completion.content) == ("Hm.", "")
    assert completion.tool_calls == (WEATHER,)


@pytest.mark.parametrize("end", range(len(CALL)))
def test_a_cut_off_call_is_never_a_call(small_vocabulary: Vocabulary, end: int) -> None:
    ids = ids_of(small_vocabulary, "section_begin", *CALL, *CALL[:end])
    completion = parse_completion(ids, small_vocabulary)
    assert completion.tool_calls == (WEATHER,)
    assert not completion.malformed
    header, arguments = "".join(CALL[1 : min(end, 2)]), "".join(CALL[3:end])
    assert completion.cut_calls == ((CutCall(header, arguments),) if end else ())


@pytest.mark.parametrize(
    "breaker", ["section_end", "call_begin", "turn_end", "section_begin", "argument_begin", "think_end"]
)
def test_arguments_broken_off_by_a_marker(small_vocabulary: Vocabulary, breaker: str) -> None:
    parser = ToolCallParser(small_vocabulary)
    events = parser.feed(ids_of(small_vocabulary, "section_begin", *CALL[:4], breaker)) + parser.finish()
    assert CallCut(0) in events
    assert CallFinished(0) not in events


@pytest.mark.parametrize("header", ["search:2", "functions.f", "get_weather", "functions.f:x", "", "functions.f:01"])
def test_a_call_with_another_header_is_malformed_and_kept(small_vocabulary: Vocabulary, header: str) -> None:
    ids = ids_of(small_vocabulary, "section_begin", "call_begin", header, "argument_begin", "{}", "call_end", *CALL)
    completion = parse_completion(ids, small_vocabulary)
    assert completion.malformed == (f"<|tool_call_begin|>{header}<|tool_call_argument_begin|>{{}}<|tool_call_end|>",)
    assert completion.tool_calls == (WEATHER,)


def test_text_between_calls_is_kept(small_vocabulary: Vocabulary) -> None:
    ids = ids_of(small_vocabulary, "section_begin", "oops", *CALL, " ", *CALL, "section_end", "more")
    completion = parse_completion(ids, small_vocabulary)
    assert completion.malformed == ("oops", " ")
    assert completion.content == "more"
    assert len(completion.tool_calls) == 2


def test_a_marker_spelled_out_is_text(small_vocabulary: Vocabulary) -> None:
    spelled = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    )
    completion = parse_completion(small_vocabulary.encode(spelled), small_vocabulary)
    assert completion.content == spelled
    assert not completion.tool_calls
    inside = ToolCall("f", 0, f'{{"a": "{spelled}"}}')
    assert parse_completion(render_tool_calls([inside], small_vocabulary), small_vocabulary).tool_calls == (inside,)


def test_a_character_across_tokens(small_vocabulary: Vocabulary) -> None:
    bytes_of = {small_vocabulary.token_bytes(token): token for token in range(256)}
    parser = ToolCallParser(small_vocabulary)
    texts = [parser.feed([bytes_of[bytes((byte,))]]) for byte in "é".encode()]
    assert texts == [[], [ContentDelta("é")]]
    assert parser.feed([bytes_of[b"\xc3"]]) == []
    assert parser.finish() == [ContentDelta("\ufffd")]


def test_a_character_at_the_limit_of_a_call_id_stays_whole(small_vocabulary: Vocabulary) -> None:
    bytes_of = {small_vocabulary.token_bytes(token): token for token in range(256)}
    header = "x" * 4096 + "é"  # the limit is 4,096 bytes: between the two of this character
    ids = [bytes_of[bytes((byte,))] for byte in header.encode()]
    completion = parse_completion([*ids_of(small_vocabulary, "section_begin", "call_begin"), *ids], small_vocabulary)
    assert completion.malformed == (f"<|tool_call_begin|>{header}",)


@pytest.mark.parametrize("token", [-1, 10**9, -(2**80)])
def test_ids_out_of_range(small_vocabulary: Vocabulary, token: int) -> None:
    with pytest.raises(MalformedCompletion, match="not in the vocabulary"):
        parse_completion([1, token], small_vocabulary)


@given(st.data())
def test_nothing_a_model_can_write_raises_or_disappears(small_vocabulary: Vocabulary, data: st.DataObject) -> None:
    markers = [small_vocabulary.special_tokens[text] for text in small_vocabulary.format.marker_texts.values()]
    token = st.sampled_from(markers) | st.integers(0, small_vocabulary.size - 1) | st.integers(97, 122)
    ids = data.draw(st.lists(token, max_size=40))
    completion = parse_completion(ids, small_vocabulary)
    kept = "".join(
        [completion.reasoning, completion.content, *completion.malformed]
        + [call.name + call.arguments for call in completion.tool_calls]
        + [call.header + call.arguments for call in completion.cut_calls]
    )
    for token_id in ids:
        if 97 <= token_id <= 122:  # one ASCII letter a token, so that none is lost in invalid UTF-8
            assert small_vocabulary.decode([token_id]) in kept


@pytest.mark.parametrize(
    "call", [ToolCall("", 0, "{}"), ToolCall("f", -1, "{}"), ToolCall("f", 0, '"\ud800"'), ToolCall("<think>", 0, "")]
)
def test_calls_that_cannot_be_written(small_vocabulary: Vocabulary, call: ToolCall) -> None:
    with pytest.raises(MalformedCompletion, match=r"calls\[1\]"):
        render_tool_calls([WEATHER, call], small_vocabulary)


def test_no_calls_render_to_nothing(small_vocabulary: Vocabulary) -> None:
    assert render_tool_calls([], small_vocabulary) == []
