"""The strict level in both formats, with output that only unconstrained models write, and what is rendered."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from constrained_k2 import (
    Compiler,
    MalformedCompletion,
    ToolCall,
    ToolCallParser,
    Vocabulary,
    parse_completion,
    render_tool_calls,
)
from constrained_k2.formats.kimi_k3 import KIMI_K3, SPECIAL_TOKENS
from constrained_k2.parsing import PARSING_LEVELS, CutCall
from constrained_k2.parsing.events import (
    ArgumentsDelta,
    CallCut,
    CallFinished,
    CallStarted,
    ContentDelta,
    Event,
    ReasoningDelta,
)
from constrained_k2.parsing.parser import ParsingLevel
from constrained_k2.request.spec import Tool
from tests.kit.budget import tries
from tests.kit.data import data
from tests.kit.k3_turns import CLOSE, END, OPEN, SEP
from tests.kit.turns import ids_of
from tests.parsing.transcripts import Turn, encoded, random_turn, written

BYTES, K3 = Vocabulary.of_bytes(), Vocabulary.of_bytes(KIMI_K3)
each_level = pytest.mark.parametrize("level", PARSING_LEVELS)
WEATHER = ToolCall("get_weather", 0, '{"city": "Beijing"}')
F = ToolCall("f", 1, "{}")

# Kimi K2's markers, and a call of "get_weather"
SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
BEGIN, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
PARTS = (BEGIN, "functions.get_weather:0", ARGUMENTS, '{"city": "Beijing"}', CALL_END)
CALL = "".join(PARTS)
SPELLED = f"{SECTION}{BEGIN}functions.f:0{ARGUMENTS}{{}}{CALL_END}"

# Kimi K3's tags, and the beginning of a call of "f"
OVER, TOOLS, TOOLS_END = f"{CLOSE}response{SEP}", f"{OPEN}tools{SEP}", f"{CLOSE}tools{SEP}"
K3_CALL, K3_CALL_END = f'{OPEN}call tool="f" index="1"{SEP}', f"{CLOSE}call{SEP}"
ENDED = f"{CLOSE}message{SEP}{END}"
THOUGHT = f"{CLOSE}think{SEP}{OPEN}response{SEP}"


def argument(key: str, kind: str, value: str) -> str:
    return f'{OPEN}argument key="{key}" type="{kind}"{SEP}{value}{CLOSE}argument{SEP}'


def spelled(text: str) -> str:
    return text.replace("<|", "<~|")


def header_row(header: str) -> tuple[str, dict[str, Any]]:
    broken = f"{BEGIN}{header}{ARGUMENTS}{{}}{CALL_END}"
    return f"{SECTION}{broken}{CALL}", {"calls": [WEATHER], "malformed": [broken]}


# Each row: a text, and what it is read as.
K2_ROWS: list[tuple[str, dict[str, Any]]] = [
    (f"<think>Hm. 🌦️</think>Look:{SECTION}{CALL}{SECTION_END}<|im_end|>", {"reasoning": "Hm. 🌦️", "content": "Look:", "calls": [WEATHER]}),
    (f"Hm.{SECTION}{CALL}{SECTION_END}", {"in_reasoning": True, "reasoning": "Hm.", "calls": [WEATHER]}),
    *((f"{SECTION}{CALL}{''.join(PARTS[:end])}",
       {"calls": [WEATHER], "cut": [CutCall("".join(PARTS[1 : min(end, 2)]), "".join(PARTS[3:end]))] if end else []}) for end in range(5)),
    *map(header_row, ("search:2", "functions.f", "get_weather", "functions.f:x", "", "functions.f:01")),
    (f"{SECTION}oops{CALL} {CALL}{SECTION_END}more", {"calls": [WEATHER] * 2, "malformed": ["oops", " "], "content": "more"}),
    (spelled(SPELLED), {"content": SPELLED}),
    (f'{SECTION}{BEGIN}functions.f:0{ARGUMENTS}{{"a": "{spelled(SPELLED)}"}}{CALL_END}{SECTION_END}',
     {"calls": [ToolCall("f", 0, f'{{"a": "{SPELLED}"}}')]}),
    # The limit of a call id is 4,096 bytes: between the two of this character.
    (f"{SECTION}{BEGIN}{'x' * 4096}é", {"malformed": [f"{BEGIN}{'x' * 4096}é"]}),
]  # fmt: skip


def in_call(inside: str, **expected: Any) -> tuple[str, dict[str, Any]]:
    """A row of a call with this inside, which is cut off, and a right one."""
    text = f"{OVER}{TOOLS}{K3_CALL}{inside}{K3_CALL_END}{K3_CALL}{K3_CALL_END}{TOOLS_END}"
    return text, {"calls": [F], "headers": ["functions.f:1"], "malformed": [inside + K3_CALL_END]} | expected


def value_row(kind: str, value: str) -> tuple[str, dict[str, Any]]:
    cut = CutCall("functions.f:1", f'{{"k": {value}')
    return in_call(argument("k", kind, value), cut=[cut], malformed=[f"{CLOSE}argument{SEP}{K3_CALL_END}"])


def tag_row(header: str) -> tuple[str, dict[str, Any]]:
    broken = f"{OPEN}{header}{SEP}{argument('a', 'string', 'x')}{K3_CALL_END}"
    return f"{OVER}{TOOLS}{broken}{K3_CALL}{K3_CALL_END}{TOOLS_END}{ENDED}", {"calls": [F], "malformed": [broken]}


NOT_DUE = f"a{TOOLS}{K3_CALL}{K3_CALL_END}{OPEN}foo{SEP}{OPEN}{CLOSE}b"
K3_ROWS: list[tuple[str, dict[str, Any]]] = [
    *map(value_row, ("number",) * 4, ('1, "x": 2', "", "true", "NaN")), value_row("boolean", "True"),
    *map(value_row, ("object",) * 4, ('{}, "x": {}', '{"a": 1}} ', "[1]", '{"a": foo}')),
    *map(value_row, ("array",) * 4, ("[1", "[1}", "[1,]", "x")),
    *map(tag_row, ('call index="1" tool="f"', 'call tool="f"', 'call tool="f" index="0"', 'call tool="f" index="01"',
                   'call tool="" index="1"', 'call tool="a&b" index="1"', 'call  tool="f" index="1"', 'call tool="f" index="1" ',
                   'call tool="a\nb" index="1"', "call")),
    in_call(f'{OPEN}argument type="string" key="a"{SEP}x{CLOSE}argument{SEP}'),
    in_call(f'{OPEN}argument key="a"{SEP}x{CLOSE}argument{SEP}'),
    in_call(argument("a", "integer", "1")),
    in_call(argument("a", "string", "x") + f'{OPEN}json type="object"{SEP}{{}}{CLOSE}json{SEP}', malformed=...),
    in_call("x"),
    in_call(END, malformed=...),
    in_call(f"{OPEN}tools{SEP}"),
    (f"hi{OVER}a{TOOLS}b{K3_CALL}{K3_CALL_END}c{TOOLS_END}d{ENDED}e", {"content": "hi", "malformed": ["ab", "cde"], "calls": [F]}),
    (NOT_DUE + OVER, {"content": NOT_DUE}),
    (NOT_DUE, {"in_reasoning": True, "reasoning": NOT_DUE}),
    (f"{OPEN}think{SEP}hm{THOUGHT}hi{OVER}{ENDED}", {"reasoning": "hm", "content": "hi"}),  # the prompt opens the message alone
]  # fmt: skip


@pytest.mark.parametrize(
    ("which", "text", "expected"),
    [*(("small_compiler", *row) for row in K2_ROWS), *(("k3_small_compiler", *row) for row in K3_ROWS)],
)
def test_texts(which: str, text: str, expected: dict[str, Any], request: pytest.FixtureRequest) -> None:
    compiler: Compiler = request.getfixturevalue(which)
    for vocabulary in (compiler.vocabulary, K3 if which.startswith("k3") else BYTES):
        in_reasoning = expected.get("in_reasoning", False)
        found = parse_completion(ids_of(vocabulary, text), vocabulary, in_reasoning=in_reasoning)
        assert (found.reasoning, found.content) == (expected.get("reasoning", ""), expected.get("content", ""))
        assert list(found.tool_calls) == expected.get("calls", [])
        if "headers" not in expected or "cut" in expected:
            assert list(found.cut_calls) == expected.get("cut", [])
        assert [cut.header for cut in found.cut_calls] == expected.get(
            "headers", [cut.header for cut in found.cut_calls]
        )
        malformed = expected.get("malformed", [])
        assert found.malformed if malformed is ... else list(found.malformed) == malformed


def test_a_turn_as_events() -> None:
    parser = ToolCallParser(BYTES)
    for text, events in (
        (f"x{SECTION}{BEGIN}", [ContentDelta("x")]),
        (f"functions.f:3{ARGUMENTS}", [CallStarted(0, "f", 3)]),
        ("{", [ArgumentsDelta(0, "{")]),
        (f"}}{CALL_END}", [ArgumentsDelta(0, "}"), CallFinished(0)]),
        (f"{SECTION_END}<|im_end|>", []),
    ):
        assert parser.feed(ids_of(BYTES, text)) == events
    assert parser.finish() == []


def test_a_turn_of_kimi_k3_as_events() -> None:
    parser = ToolCallParser(K3, in_reasoning=True)
    turn: list[tuple[str, list[Event]]] = [
        ("H", [ReasoningDelta("H")]),
        (THOUGHT, []),
        ("x", [ContentDelta("x")]),
        (OVER + TOOLS, []),
        (f'{OPEN}call tool="f" index="3"', []),
        (SEP, [CallStarted(0, "f", 3)]),
        (f'{OPEN}argument key="a&quot;" type="string"{SEP}', [ArgumentsDelta(0, '{"a\\"": ')]),
        ('"', [ArgumentsDelta(0, '"\\"')]),
        ("\n", [ArgumentsDelta(0, "\\n")]),
        (f"{CLOSE}argument{SEP}", [ArgumentsDelta(0, '"')]),
        (f'{OPEN}argument key="b" type="array"{SEP}[', [ArgumentsDelta(0, ', "b": '), ArgumentsDelta(0, "[")]),
        ("1", [ArgumentsDelta(0, "1")]),
        (f"]{CLOSE}argument{SEP}{K3_CALL_END}", [ArgumentsDelta(0, "]"), ArgumentsDelta(0, "}"), CallFinished(0)]),
        (TOOLS_END + ENDED, []),
    ]
    for text, events in turn:
        assert parser.feed(ids_of(K3, text)) == events
    assert parser.finish() == []


@pytest.mark.parametrize(
    "breaker", ["section_end", "call_begin", "turn_end", "section_begin", "argument_begin", "think_end"]
)
def test_arguments_broken_off_by_a_marker(small_vocabulary: Vocabulary, breaker: str) -> None:
    parser = ToolCallParser(small_vocabulary)
    events = parser.feed(ids_of(small_vocabulary, SECTION + "".join(PARTS[:4]), breaker)) + parser.finish()
    assert CallCut(0) in events
    assert CallFinished(0) not in events


@each_level
def test_a_character_across_tokens(level: ParsingLevel) -> None:
    parser = ToolCallParser(BYTES, level=level)
    assert [parser.feed([byte]) for byte in "é".encode()] == [[], [ContentDelta("é")]]
    assert parser.feed([0xC3]) == []
    assert parser.finish() == [ContentDelta("\ufffd")]
    parser = ToolCallParser(K3, level=level)
    parser.feed(ids_of(K3, f'{OVER}{TOOLS}{K3_CALL}{OPEN}argument key="k" type="string"{SEP}'))
    assert [parser.feed([byte]) for byte in "é".encode()] == [[], [ArgumentsDelta(0, '"é')]]
    assert parser.feed([0xC3]) == []
    events = parser.feed(ids_of(K3, f"{CLOSE}argument{SEP}"))
    assert "".join(event.text for event in events if isinstance(event, ArgumentsDelta)) == '\ufffd"'


@pytest.mark.parametrize("token", [-1, 10**9, -(2**80)])
def test_ids_out_of_range(small_vocabulary: Vocabulary, token: int) -> None:
    with pytest.raises(MalformedCompletion, match="not in the vocabulary"):
        parse_completion([1, token], small_vocabulary)


@pytest.mark.parametrize(
    "call", [ToolCall("", 0, "{}"), ToolCall("f", -1, "{}"), ToolCall("f", 0, '"\ud800"'), ToolCall("<think>", 0, "")]
)
def test_calls_that_cannot_be_written(small_vocabulary: Vocabulary, call: ToolCall) -> None:
    with pytest.raises(MalformedCompletion, match=r"calls\[1\]"):
        render_tool_calls([WEATHER, call], small_vocabulary)


def test_no_calls_render_to_nothing(small_vocabulary: Vocabulary) -> None:
    assert render_tool_calls([], small_vocabulary) == []


def expected_of(turn: Turn) -> tuple[str, str, list[tuple[str, int, str]]]:
    """The reasoning, the response and the calls of a turn, with arguments as JSON text in their own spelling."""
    calls = [
        (name, number, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))
        for number, (name, arguments) in enumerate(turn.calls, 1)
    ]
    return turn.reasoning or "", turn.response, calls


@each_level
def test_what_is_written_is_read(level: ParsingLevel, k3_small_compiler: Compiler) -> None:
    chance = random.Random(5)
    calls = 0
    count = tries(1500, fast=300, everything=5000)
    for number in range(count):
        turn = random_turn(chance)
        vocabulary = (K3, k3_small_compiler.vocabulary)[number % 2]
        ids = encoded(written(turn), vocabulary)
        # A response may spell a call: without tools, the tolerant level takes it for text.
        tools = [Tool(name) for name, _ in turn.calls] if level == "strict" else None
        found = parse_completion(ids, vocabulary, in_reasoning=turn.reasoning is not None, level=level, tools=tools)
        found_calls = [(call.name, call.index, call.arguments) for call in found.tool_calls]
        assert (found.reasoning, found.content, found_calls) == expected_of(turn)
        assert not (found.cut_calls or found.malformed)
        assert not any(call.recoveries or call.written or call.undeclared for call in found.tool_calls)
        calls += len(found_calls)
    assert calls > count


@each_level
def test_goldens_of_kimi_k3(level: ParsingLevel, k3_real_compiler: Compiler) -> None:
    """Every assistant message in the rendered histories is a turn."""
    real = k3_real_compiler.vocabulary
    opening = [token for piece in (OPEN, "message", " role", '="', "assistant", '"') for token in ids_of(real, piece)]
    turns = calls = 0
    for path in sorted(data("kimi_k3/rendered").glob("*.json")):
        golden = json.loads(path.read_text("utf-8"))
        request, ids = golden["request"], golden["ids"]
        starts = [at for at in range(len(ids)) if ids[at : at + len(opening)] == opening]
        messages = [message for message in request["messages"] if message["role"] == "assistant"]
        for start, message in zip(starts, messages, strict=False):  # the last start may be the generation prompt
            begin, end = (ids.index(token, start) + 1 for token in (real.special_tokens[SEP], real.format.turn_end))
            found = parse_completion(ids[begin:end], real, level=level)
            check_golden(found, message, path, thinks=request["options"].get("thinking", True))
            turns, calls = turns + 1, calls + len(found.tool_calls)
    assert turns >= 8
    assert calls >= 8


def check_golden(found: Any, message: dict[str, Any], path: Path, *, thinks: bool) -> None:
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    assert (found.reasoning, found.content) == (reasoning if thinks else "", message.get("content") or ""), path
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    assert [(call.name, call.index, call.recoveries) for call in found.tool_calls] == [
        (function["name"], index, ()) for index, function in enumerate(functions, 1)
    ]
    for call, function in zip(found.tool_calls, functions, strict=True):
        given = function.get("arguments") or {}
        assert (call.arguments if isinstance(given, str) else json.loads(call.arguments)) == given, path


@each_level
@pytest.mark.parametrize(
    ("kind", "value", "json_text"),
    [
        *((kind, value, value) for kind, value in (
            ("number", "1e2"), ("number", "9" * 5000), ("array", "[1,2 , 3]"), ("object", '{"a":"}]{","b":{"c":[]}}'),
            ("object", ' {"a": "\\"}"}\n'), ("boolean", "true"), ("null", "null"),
        )),
        ("string", "", '""'), ("string", "1", '"1"'),
    ],
    ids=str,
)  # fmt: skip
def test_values_keep_their_own_spelling(kind: str, value: str, json_text: str, level: ParsingLevel) -> None:
    ids = ids_of(K3, f"{OVER}{TOOLS}{K3_CALL}{argument('k', kind, value)}{K3_CALL_END}{TOOLS_END}")
    (call,) = parse_completion(ids, K3, level=level).tool_calls
    assert (call.arguments, call.recoveries) == (f'{{"k": {json_text}}}', ())


@each_level
@pytest.mark.parametrize("stop", ["", END, "[EOS]"])
def test_a_call_of_kimi_k3_cut_off_is_never_a_call(level: ParsingLevel, stop: str) -> None:
    begun = f"hi{OVER}{TOOLS}{K3_CALL}"
    first = begun + argument("a", "string", "x")
    whole = first + argument("b", "object", "{}")
    ids = ids_of(K3, whole + K3_CALL_END)
    # A model that stopped behind an argument has only left out the call's end.
    ends = {len(ids_of(K3, text)) for text in (first, whole)} if stop and level == "tolerant" else set()
    for end in range(len(ids)):
        found = parse_completion([*ids[:end], *ids_of(K3, stop)], K3, level=level)
        assert [call.recoveries for call in found.tool_calls] == [("no_call_end",)] * (end in ends)
        assert found.content.startswith("hi"[:end])
        assert bool(found.cut_calls) >= (end >= len(ids_of(K3, begun)) and end not in ends)
    assert parse_completion(ids, K3, level=level).tool_calls == (ToolCall("f", 1, '{"a": "x", "b": {}}'),)


@each_level
def test_special_tokens_without_a_part_in_the_format_are_text(k3_small_compiler: Compiler, level: ParsingLevel) -> None:
    vocabulary = k3_small_compiler.vocabulary
    found = parse_completion(ids_of(vocabulary, f"a{SPECIAL_TOKENS[18]}b"), vocabulary, level=level)
    assert found.content == "a<|media_begin|>b"
