"""Completions read inside vLLM's own composition of parsers, for vLLM's own request objects, without a server."""

import json
from typing import Any

import pytest

from constrained_k2 import ToolCall, Vocabulary, render_tool_calls
from constrained_k2.vllm_plugin.api_server.parser import LastDelta
from tests.parsing.transcripts import ids_of_text
from tests.vllm_plugin.parsers import SIZES, Composed, Shown, chat, responses

CALLS = [ToolCall("f", 0, '{"a": "北京"}'), ToolCall("f", 1, "{}")]
SHOWN = [(call.id, call.name, call.arguments) for call in CALLS]
OFF = {"vllm_xargs": {"constrained_k2": "off"}}


def shown(composed: Composed, request: Any, ids: list[int], vocabulary: Vocabulary, text: str | None = None) -> Shown:
    """The parts of an answer that a client is shown, the same as a whole and as a stream of pieces of any size; ``text`` is vLLM's."""
    whole = composed.whole(request, ids, vocabulary.decode(ids) if text is None else text)
    for size in SIZES:
        assert composed.stream(request, composed.pieces(ids, size, vocabulary))[0] == whole, size
    return whole


def test_stream_and_whole_agree(composed: Composed, vocabulary: Vocabulary) -> None:
    markers = vocabulary.format
    turn = [markers.think_begin, *vocabulary.encode("Hm 🌦️"), markers.think_end, *vocabulary.encode("Look: <think>")]
    ids = [*turn, *render_tool_calls(CALLS, vocabulary), markers.turn_end]
    request = composed.chat()
    whole = composed.whole(request, ids, vocabulary.decode(ids[:-1]))
    assert whole == ("Hm 🌦️", "Look: <think>", SHOWN)
    for size in SIZES:
        assert composed.stream(request, composed.pieces(ids, size))[0] == whole


def test_reasoning_that_the_prompt_opened_or_the_client_hides(composed: Composed, vocabulary: Vocabulary) -> None:
    request, prompt = composed.chat(), [1, vocabulary.format.think_begin]
    ids = [*vocabulary.encode("Hm"), vocabulary.format.think_end, *vocabulary.encode("Yes")]
    assert composed.whole(request, ids, prompt=prompt) == ("Hm", "Yes", [])
    assert composed.stream(request, [(ids, "")], prompt)[0] == ("Hm", "Yes", [])
    assert composed.stream(composed.chat(include_reasoning=False), [(ids, "")], prompt)[0] == ("", "Yes", [])


def test_a_cut_off_call_is_not_handed_over(composed: Composed, vocabulary: Vocabulary) -> None:
    """Nor is half of it shown in a stream that stop strings hold back."""
    ids = render_tool_calls(CALLS, vocabulary)[:-2]
    assert composed.whole(composed.chat(), ids) == ("", "", SHOWN[:1])
    assert shown(composed, composed.chat(stop=["END"]), ids, vocabulary) == ("", "", SHOWN[:1])


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_stop_strings(composed: Composed, vocabulary: Vocabulary, size: int) -> None:
    request = composed.chat(stop=["n EN"])
    ids = vocabulary.encode("It is raining in Berlin. Then EN")
    text = "It is raining in Berlin. The"  # vLLM found its stop string behind this and cut the text
    assert composed.whole(request, ids, text)[1] == text
    parts = composed.pieces(ids, size)
    ends = [len(text) * number // len(parts) for number in range(len(parts) + 1)]
    pieces = [(part, text[ends[number] : ends[number + 1]]) for number, (part, _) in enumerate(parts)]
    assert composed.stream(request, pieces)[0][1] == text


def incomplete(vocabulary: Vocabulary) -> int:
    """A token of a whole character and the beginning of another one."""
    (found,) = (n for n in range(vocabulary.size) if vocabulary.token_bytes(n) == "请".encode() + b"\xe5")
    return found


def test_a_text_that_no_stop_string_has_ended(composed: Composed, vocabulary: Vocabulary) -> None:
    """vLLM's text lacks a last token that ends within a character, whole characters in it included."""
    request, last = composed.chat(stop=["END"]), incomplete(vocabulary)
    begin = vocabulary.encode("It rains in EN")
    text = vocabulary.decode(begin)
    assert composed.whole(request, [*begin, last], text)[1] == f"{text}请\ufffd"
    for pieces in (
        [([token], vocabulary.decode([token])) for token in begin] + [([last], "")],
        [([*begin, last], text)],
    ):
        assert composed.stream(request, pieces)[0][1] == f"{text}请\ufffd"


@pytest.mark.parametrize("fields", [{"tools": None}, {}, {"tool_choice": "none"}, OFF])
def test_a_stop_string_that_is_shown_ends_the_text_inside_a_token(
    composed: Composed, vocabulary: Vocabulary, fields: dict[str, Any]
) -> None:
    ordinary = filter(vocabulary.is_ordinary, range(vocabulary.size))
    long = next(token for token in ordinary if len(text := vocabulary.token_bytes(token)) > 5 and text.isalpha())
    stop = vocabulary.decode([long])[:3]
    request = composed.chat(stop=[stop], include_stop_str_in_output=True, **fields)
    ids = [*vocabulary.encode("It may be 9"), long]
    reasoning, content, _ = composed.whole(request, ids, f"It may be 9{stop}")
    assert reasoning + content == f"It may be 9{stop}"


def test_another_models_tokenizer_stops_the_server() -> None:
    class Other:
        get_vocab = dict

    with pytest.raises(TypeError, match="kimi_k2_constrained cannot be used with the tokenizer.*neither Kimi's"):
        Composed(Other())


LENIENT = [
    "Look: <|tool_call_begin|>f:0<|tool_call_argument_begin|>{'a': True,}<|tool_call_end|> and more",
    "<|tool_calls_section_begin|>\n<|tool_call_begin|> functions.f:0 \n<|tool_call_argument_begin|>{<|tool_call_end|>\n<|tool_calls_section_end|>",
    '<think>Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "é"}<|tool_call_end|>',
    "<~|tool_calls_section_begin|><~|tool_call_begin|>functions.f:0<~|tool_call_argument_begin|>{}<~|tool_call_end|><~|tool_calls_section_end|>",
]


@pytest.mark.parametrize("text", LENIENT)
def test_unconstrained_requests_are_read_tolerantly(composed: Composed, vocabulary: Vocabulary, text: str) -> None:
    ids = ids_of_text(text, vocabulary)
    whole = shown(composed, composed.chat(**OFF), ids, vocabulary)
    assert [call[:2] for call in whole[2]] == [("functions.f:0", "f")]
    json.loads(whole[2][0][2])
    strict = composed.whole(composed.chat(), ids, vocabulary.decode(ids))
    assert (strict == whole) is ("<think>" in text)  # that one keeps to the format


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_where_only_whole_calls_are_shown_a_cut_one_is_not(
    composed: Composed, vocabulary: Vocabulary, size: int
) -> None:
    cut, whole = '{"a"', [*render_tool_calls(CALLS, vocabulary)]
    begun = ids_of_text(f"<|tool_call_begin|>functions.f:7<|tool_call_argument_begin|>{cut}", vocabulary)
    ids = [whole[0], *begun, *whole[1:-1], *begun]
    flat = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    for request in (chat(**OFF, stop=["never"]), responses(tools=[flat], **OFF)):
        composed.adjusted(request)
        seen, parser = composed.stream(request, composed.pieces(ids, size, vocabulary))
        assert seen[2] == SHOWN
        assert not parser._ending.is_cut


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_a_repeated_call_is_never_shown(composed: Composed, vocabulary: Vocabulary, size: int) -> None:
    request = composed.chat(vllm_xargs={"constrained_k2_repeated_calls": "forbid"})
    call_end, section_end = vocabulary.format.call_end, vocabulary.format.section_end
    ids = render_tool_calls([*CALLS, ToolCall("f", 2, '{"a":"北京"}')], vocabulary)
    assert ids[-2:] == [call_end, section_end]
    repeated = [*ids[:-2], section_end, vocabulary.format.turn_end]
    seen, parser = composed.stream(request, composed.pieces(repeated, size, vocabulary))
    assert seen == ("", "", SHOWN) == composed.whole(request, repeated, vocabulary.decode(repeated))
    assert (parser._ending.is_cut, parser._ending.declined) == (False, "f")
    seen, parser = composed.stream(request, composed.pieces(ids[:-2], size, vocabulary))  # by max_tokens
    assert seen == ("", "", SHOWN) and parser._ending.is_cut


def test_the_last_delta_says_whether_a_call_is_cut(composed: Composed, vocabulary: Vocabulary) -> None:
    request, calls = composed.chat(**OFF), render_tool_calls(CALLS, vocabulary)
    for ids, cut in ((calls, False), (calls[:-2], True)):
        parser = composed.make(request)
        parser.parse_delta("", ids[:-1], request, [1], finished=False)
        last = parser.parse_delta("", ids[-1:], request, [1], finished=True)
        assert (isinstance(last, LastDelta) and last.ending.is_cut) is cut


def test_leniencies_are_said_in_the_log(
    composed: Composed, vocabulary: Vocabulary, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vllm.constrained_k2")
    assert composed.whole(composed.chat(**OFF), ids_of_text(LENIENT[0].replace("f:0", "g:0"), vocabulary))[2]
    assert all(name in caplog.text for name in ("'g'", "bare_id", "no_section", "single_quotes"))


CALLED = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
HISTORY = [
    {"role": "assistant", "tool_calls": [CALLED]},
    {"role": "tool", "tool_call_id": "functions.f:0", "content": "1"},
]
UNWANTED = [
    {"tool_choice": "none", **OFF},
    {"tools": None, **OFF},
    {"tools": None},
    {"tools": None, "messages": HISTORY},
    {"tools": None, "messages": HISTORY, **OFF},
    {"tools": None, "stop": ["never"]},
    {"tools": None, "chat_template_kwargs": {"thinking": False}},
]


@pytest.mark.parametrize("fields", UNWANTED, ids=str)
def test_a_call_that_was_not_wanted_is_not_shown(composed: Composed, vocabulary: Vocabulary, fields: Any) -> None:
    """No part of the call is shown, as with vLLM's own parser."""
    request, markers = composed.chat(**fields), vocabulary.format
    calls = render_tool_calls(CALLS, vocabulary)
    for thought in ([], [markers.think_end]):  # the prompt may have opened the reasoning
        for written in ([*calls, markers.turn_end], calls[:-7], calls[1:-1]):
            ids = [*thought, *vocabulary.encode("Look: 北京"), *written]
            text = vocabulary.decode(ids).removesuffix("<|im_end|>")
            reasoning, content, found = shown(composed, request, ids, vocabulary, text)
            assert found == []
            assert f"{reasoning}{content}".removeprefix("</think>") == "Look: 北京"


def test_text_without_tools_is_vllms_own(composed: Composed, vocabulary: Vocabulary) -> None:
    """Also with a special token in it, a stop that vLLM does not show, and an incomplete character at its end."""
    stray = vocabulary.special_tokens["[PAD]"]
    spelled = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    for fields, end, tail in (({}, [incomplete(vocabulary)], "请"), ({"stop_token_ids": [7]}, [7], ""), ({}, [], "")):
        request = composed.chat(tools=None, **fields)
        ids = [vocabulary.format.think_end, *vocabulary.encode(f"Hi 北京: {spelled}"), stray, *end]
        content = composed.whole(request, ids, vocabulary.decode(ids))[1].removeprefix("</think>")
        assert content == f"Hi 北京: {spelled}{tail}"
        for size in SIZES:
            seen, _ = composed.stream(request, composed.pieces(ids, size, vocabulary))
            assert seen[1].removeprefix("</think>") == content
