"""Completions read inside vLLM's own composition of parsers, for vLLM's own request objects, without a server."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.parser import ParserManager

from constrained_k2 import ToolCall, Vocabulary, render_tool_calls
from constrained_k2.vllm_plugin.api_server.parser import LastDelta
from tests.parsing.transcripts import ids_of_text
from tests.vllm_plugin.parsers import adjusted, chat, make
from tests.vllm_plugin.patched import patch_vllm

CALLS = [ToolCall("f", 0, '{"a": "北京"}'), ToolCall("f", 1, "{}")]


def test_stops_in_a_stream_never_show_half_a_call(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
    request = adjusted(parser_class, tokenizer, chat(stop=["END"]))
    ids = render_tool_calls(CALLS, vocabulary)[:-2]
    text = vocabulary.decode(ids)
    pieces = [([token], vocabulary.decode([token])) for token in ids]
    shown = read_stream(make(parser_class, tokenizer, request), request, pieces, [1])
    assert shown == read_whole(make(parser_class, tokenizer, request), request, ids, text)
    assert [call[0] for call in shown[2]] == [CALLS[0].id]


def read_whole(parser: Any, request: Any, ids: list[int], text: str) -> tuple[str, str, list[tuple[str, str, str]]]:
    reasoning, content, calls = parser.parse(text, request, True, ids)
    return reasoning or "", content or "", [(call.id, call.name, call.arguments) for call in calls or []]


def read_stream(
    parser: Any, request: Any, pieces: list[tuple[list[int], str]], prompt: list[int]
) -> tuple[str, str, list[tuple[str, str, str]]]:
    reasoning, content = "", ""
    calls: dict[int, list[str]] = {}
    for number, (ids, text) in enumerate(pieces):
        delta = parser.parse_delta(text, ids, request, prompt, finished=number == len(pieces) - 1)
        if delta is None:
            continue
        reasoning += delta.reasoning or ""
        content += delta.content or ""
        for part in delta.tool_calls:
            call = calls.setdefault(part.index, ["", "", ""])
            call[0] += part.id or ""
            call[1] += part.function.name or ""
            call[2] += part.function.arguments or ""
    return reasoning, content, [(call[0], call[1], call[2]) for call in calls.values()]


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_stream_and_whole_agree(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary, size: int) -> None:
    markers = vocabulary.format
    turn = [markers.think_begin, *vocabulary.encode("Hm 🌦️"), markers.think_end, *vocabulary.encode("Look: <think>")]
    ids = [*turn, *render_tool_calls(CALLS, vocabulary), markers.turn_end]
    request = adjusted(parser_class, tokenizer, chat())
    text = vocabulary.decode(ids[:-1])
    whole = read_whole(make(parser_class, tokenizer, request), request, ids, text)
    assert whole == ("Hm 🌦️", "Look: <think>", [(call.id, call.name, call.arguments) for call in CALLS])
    pieces = [(ids[start : start + size], "") for start in range(0, len(ids), size)]
    assert read_stream(make(parser_class, tokenizer, request), request, pieces, [1]) == whole


def test_reasoning_that_the_prompt_opened(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
    request = adjusted(parser_class, tokenizer, chat())
    ids = [*vocabulary.encode("Hm"), vocabulary.format.think_end, *vocabulary.encode("Yes")]
    prompt = [1, vocabulary.format.think_begin]
    parser = make(parser_class, tokenizer, request)
    parser.set_prompt_token_ids(prompt)
    assert read_whole(parser, request, ids, "") == ("Hm", "Yes", [])
    assert read_stream(make(parser_class, tokenizer, request), request, [(ids, "")], prompt) == ("Hm", "Yes", [])


def test_hidden_reasoning_is_not_streamed(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
    request = adjusted(parser_class, tokenizer, chat(include_reasoning=False))
    ids = [vocabulary.format.think_begin, *vocabulary.encode("Hm"), vocabulary.format.think_end]
    assert read_stream(make(parser_class, tokenizer, request), request, [(ids, "")], [1]) == ("", "", [])


def test_a_cut_off_call_is_not_handed_over(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
    request = adjusted(parser_class, tokenizer, chat())
    ids = render_tool_calls(CALLS, vocabulary)[:-2]
    _, content, calls = read_whole(make(parser_class, tokenizer, request), request, ids, "")
    assert (content, calls) == ("", [(CALLS[0].id, "f", CALLS[0].arguments)])


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_stop_strings(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary, size: int) -> None:
    request = adjusted(parser_class, tokenizer, chat(stop=["n EN"]))
    ids = vocabulary.encode("It is raining in Berlin. Then EN")
    shown = "It is raining in Berlin. The"  # vLLM found its stop string behind this and cut the text
    assert read_whole(make(parser_class, tokenizer, request), request, ids, shown)[1] == shown
    pieces = [(ids[start : start + size], "") for start in range(0, len(ids), size)]
    lengths = [len(shown) * number // len(pieces) for number in range(len(pieces) + 1)]
    pieces = [(part, shown[lengths[n] : lengths[n + 1]]) for n, (part, _) in enumerate(pieces)]
    assert read_stream(make(parser_class, tokenizer, request), request, pieces, [1])[1] == shown


@pytest.mark.parametrize("size", [1, 1000])
def test_a_text_that_no_stop_string_has_ended(
    parser_class: Any, tokenizer: Any, vocabulary: Vocabulary, size: int
) -> None:
    """vLLM's text lacks a last token that ends within a character, whole characters in it included."""
    request = adjusted(parser_class, tokenizer, chat(stop=["END"]))
    (last,) = (n for n in range(vocabulary.size) if vocabulary.token_bytes(n) == "请".encode() + b"\xe5")
    begin = vocabulary.encode("It rains in EN")
    text = vocabulary.decode(begin)
    assert read_whole(make(parser_class, tokenizer, request), request, [*begin, last], text)[1] == f"{text}请\ufffd"
    pieces = [([token], vocabulary.decode([token])) for token in begin] + [([last], "")]
    if size > 1:
        pieces = [([*begin, last], text)]
    assert read_stream(make(parser_class, tokenizer, request), request, pieces, [1])[1] == f"{text}请\ufffd"


@pytest.mark.parametrize(
    "fields", [{"tools": None}, {}, {"tool_choice": "none"}, {"vllm_xargs": {"constrained_k2": "off"}}]
)
def test_a_stop_string_that_is_shown_ends_the_text_inside_a_token(
    parser_class: Any, tokenizer: Any, vocabulary: Vocabulary, fields: dict[str, Any]
) -> None:
    tokens = (token for token in range(vocabulary.size) if vocabulary.is_ordinary(token))
    long = next(
        token for token in tokens if len(vocabulary.token_bytes(token)) > 5 and vocabulary.token_bytes(token).isalpha()
    )
    stop = vocabulary.decode([long])[:3]
    request = adjusted(parser_class, tokenizer, chat(stop=[stop], include_stop_str_in_output=True, **fields))
    ids = [*vocabulary.encode("It may be 9"), long]
    reasoning, content, _ = read_whole(make(parser_class, tokenizer, request), request, ids, f"It may be 9{stop}")
    assert reasoning + content == f"It may be 9{stop}"


def test_requests_without_tools_are_vllms_own(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
    request = adjusted(parser_class, tokenizer, chat(tools=None, chat_template_kwargs={"thinking": False}))
    parser = make(parser_class, tokenizer, request)
    parser._reasoning_parser = None
    assert read_whole(parser, request, vocabulary.encode("Hello"), "Hello")[1] == "Hello"


def test_no_calls_where_none_were_wanted(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
    request = adjusted(parser_class, tokenizer, chat(tool_choice="none", vllm_xargs={"constrained_k2": "off"}))
    ids = render_tool_calls(CALLS, vocabulary)
    assert read_whole(make(parser_class, tokenizer, request), request, ids, "")[2] == []
    assert read_stream(make(parser_class, tokenizer, request), request, [(ids, "")], [1])[2] == []


def test_other_parsers_are_left_alone() -> None:
    patch_vllm()
    composed = ParserManager.get_parser(tool_parser_name="hermes", enable_auto_tools=True)
    assert "KimiK2" not in composed.__name__
    assert ParserManager.get_parser() is None


def test_another_models_tokenizer_stops_the_server() -> None:
    patch_vllm()
    with pytest.raises(TypeError, match="kimi_k2_constrained cannot be used with the tokenizer.*neither Kimi's"):
        ParserManager.get_parser(
            tool_parser_name="kimi_k2_constrained",
            enable_auto_tools=True,
            model_name="other",
            tokenizer=SimpleNamespace(get_vocab=dict),
        )


def streamed(parser_class: Any, tokenizer: Any, request: Any, ids: list[int], size: int) -> tuple[Any, Any]:
    """Return what a stream of deltas of this size shows, and its last delta."""
    parser = make(parser_class, tokenizer, request)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    pieces = [
        (ids[start : start + size], vocabulary.decode(ids[start : start + size])) for start in range(0, len(ids), size)
    ]
    seen = read_stream(parser, request, pieces, [1])
    return seen, parser


LENIENT = [
    "Look: <|tool_call_begin|>f:0<|tool_call_argument_begin|>{'a': True,}<|tool_call_end|> and more",
    "<|tool_calls_section_begin|>\n<|tool_call_begin|> functions.f:0 \n<|tool_call_argument_begin|>{<|tool_call_end|>\n<|tool_calls_section_end|>",
    '<think>Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "é"}<|tool_call_end|>',
    "<~|tool_calls_section_begin|><~|tool_call_begin|>functions.f:0<~|tool_call_argument_begin|>{}<~|tool_call_end|><~|tool_calls_section_end|>",
]


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize("text", LENIENT)
def test_unconstrained_requests_are_read_tolerantly(
    parser_class: Any, tokenizer: Any, vocabulary: Vocabulary, text: str, size: int
) -> None:
    off = adjusted(parser_class, tokenizer, chat(vllm_xargs={"constrained_k2": "off"}))
    ids = ids_of_text(text, vocabulary)
    whole = read_whole(make(parser_class, tokenizer, off), off, ids, vocabulary.decode(ids))
    assert [call[:2] for call in whole[2]] == [("functions.f:0", "f")]
    json.loads(whole[2][0][2])
    assert streamed(parser_class, tokenizer, off, ids, size)[0] == whole
    constrained = adjusted(parser_class, tokenizer, chat())
    strict = read_whole(make(parser_class, tokenizer, constrained), constrained, ids, vocabulary.decode(ids))
    assert (strict == whole) is ("<think>" in text)  # that one keeps to the format


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_where_only_whole_calls_are_shown_a_cut_one_is_not(
    parser_class: Any, tokenizer: Any, vocabulary: Vocabulary, size: int
) -> None:
    cut, whole = '{"a"', [*render_tool_calls(CALLS, vocabulary)]
    begun = ids_of_text(f"<|tool_call_begin|>functions.f:7<|tool_call_argument_begin|>{cut}", vocabulary)
    ids = [whole[0], *begun, *whole[1:-1], *begun]
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    for request in (
        chat(vllm_xargs={"constrained_k2": "off"}, stop=["never"]),
        ResponsesRequest.model_validate({"input": "x", "model": "m", "tools": [tool], "vllm_xargs": {"constrained_k2": "off"}}),
    ):  # fmt: skip
        adjusted(parser_class, tokenizer, request)
        seen, parser = streamed(parser_class, tokenizer, request, ids, size)
        assert seen[2] == [(call.id, call.name, call.arguments) for call in CALLS]
        assert not parser._ending.is_cut


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_a_repeated_call_is_never_shown(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary, size: int) -> None:
    request = adjusted(parser_class, tokenizer, chat(vllm_xargs={"constrained_k2_repeated_calls": "forbid"}))
    call_end, section_end = vocabulary.format.call_end, vocabulary.format.section_end
    ids = render_tool_calls([*CALLS, ToolCall("f", 2, '{"a":"北京"}')], vocabulary)
    assert ids[-2:] == [call_end, section_end]
    repeated = [*ids[:-2], section_end, vocabulary.format.turn_end]
    expected = [(call.id, call.name, call.arguments) for call in CALLS]
    seen, parser = streamed(parser_class, tokenizer, request, repeated, size)
    assert seen == ("", "", expected)
    assert (parser._ending.is_cut, parser._ending.declined) == (False, "f")
    whole = make(parser_class, tokenizer, request)
    assert read_whole(whole, request, repeated, vocabulary.decode(repeated)) == seen
    seen, parser = streamed(parser_class, tokenizer, request, ids[:-2], size)  # by max_tokens
    assert seen == ("", "", expected) and parser._ending.is_cut


def test_the_last_delta_says_whether_a_call_is_cut(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
    request = adjusted(parser_class, tokenizer, chat(vllm_xargs={"constrained_k2": "off"}))
    for ids, cut in [(render_tool_calls(CALLS, vocabulary), False), (render_tool_calls(CALLS, vocabulary)[:-2], True)]:
        parser = make(parser_class, tokenizer, request)
        parser.parse_delta("", ids[:-1], request, [1], finished=False)
        last = parser.parse_delta("", ids[-1:], request, [1], finished=True)
        assert (isinstance(last, LastDelta) and last.ending.is_cut) is cut


def test_leniencies_are_said_in_the_log(
    parser_class: Any, tokenizer: Any, vocabulary: Vocabulary, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vllm.constrained_k2")
    request = adjusted(parser_class, tokenizer, chat(vllm_xargs={"constrained_k2": "off"}))
    ids = ids_of_text(LENIENT[0].replace("f:0", "g:0"), vocabulary)
    assert read_whole(make(parser_class, tokenizer, request), request, ids, "")[2]
    said = " ".join(record.getMessage() for record in caplog.records)
    assert all(name in said for name in ("'g'", "bare_id", "no_section", "single_quotes"))


OFF = {"constrained_k2": "off"}
CALLED = {
    "role": "assistant",
    "tool_calls": [{"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
HISTORY = [CALLED, {"role": "tool", "tool_call_id": "functions.f:0", "content": "1"}]
UNWANTED = [
    {"tool_choice": "none", "vllm_xargs": OFF},
    {"tools": None, "vllm_xargs": OFF},
    {"tools": None},
    {"tools": None, "messages": HISTORY},
    {"tools": None, "messages": HISTORY, "vllm_xargs": OFF},
    {"tools": None, "stop": ["never"]},
    {"tools": None, "chat_template_kwargs": {"thinking": False}},
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("fields", UNWANTED, ids=str)
def test_a_call_that_was_not_wanted_is_not_shown(
    parser_class: Any, tokenizer: Any, vocabulary: Vocabulary, fields: Any, size: int
) -> None:
    """No part of the call is shown, as with vLLM's own parser."""
    request = adjusted(parser_class, tokenizer, chat(**fields))
    markers = vocabulary.format
    calls = render_tool_calls(CALLS, vocabulary)
    whole, cut = (*calls, markers.turn_end), calls[:-7]
    for thought in ([], [markers.think_end]):  # the prompt may have opened the reasoning
        for written in (whole, cut, [calls[1], *calls[2:-1]]):
            ids = [*thought, *vocabulary.encode("Look: 北京"), *written]
            text = vocabulary.decode(ids).removesuffix("<|im_end|>")
            parser = make(parser_class, tokenizer, request)
            shown = read_whole(parser, request, ids, text)
            assert shown[2] == []
            assert "".join(shown[:2]).removeprefix("</think>") == "Look: 北京"
            assert streamed(parser_class, tokenizer, request, ids, size)[0] == shown


@pytest.mark.parametrize("size", [1, 1000])
def test_text_without_tools_is_vllms_own(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary, size: int) -> None:
    """Also with a special token in it, a stop that vLLM does not show, and an incomplete character at its end."""
    (last,) = (n for n in range(vocabulary.size) if vocabulary.token_bytes(n) == "请".encode() + b"\xe5")
    stray = vocabulary.special_tokens["[PAD]"]
    spelled = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    for fields, end, tail in (({}, [last], "请"), ({"stop_token_ids": [7]}, [7], ""), ({}, [], "")):
        request = adjusted(parser_class, tokenizer, chat(tools=None, **fields))
        ids = [vocabulary.format.think_end, *vocabulary.encode(f"Hi 北京: {spelled}"), stray, *end]
        parser = make(parser_class, tokenizer, request)
        content = read_whole(parser, request, ids, vocabulary.decode(ids))[1].removeprefix("</think>")
        assert content == f"Hi 北京: {spelled}{tail}"
        assert streamed(parser_class, tokenizer, request, ids, size)[0][1].removeprefix("</think>") == content
