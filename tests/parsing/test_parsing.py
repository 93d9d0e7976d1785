"""Turns of both formats at both levels, also those that only unconstrained models write; and calls that are rendered."""

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
from constrained_k2.parsing import PARSING_LEVELS
from constrained_k2.parsing.events import (
    RECOVERIES,
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
from tests.parsing.transcripts import Turn, encoded, random_turn, table, written

BYTES, K3 = Vocabulary.of_bytes(), Vocabulary.of_bytes(KIMI_K3)
each_level = pytest.mark.parametrize("level", PARSING_LEVELS)

# Kimi K2's markers, and the beginning of a call of "get_weather"
SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
BEGIN, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
BEGUN = f'{SECTION}{BEGIN}functions.get_weather:0{ARGUMENTS}{{"city": "Beijing"}}'

# Kimi K3's tags, and the beginning of a call of "f"
OVER, TOOLS_BEGIN, TOOLS_END = f"{CLOSE}response{SEP}", f"{OPEN}tools{SEP}", f"{CLOSE}tools{SEP}"
K3_CALL, K3_CALL_END = f'{OPEN}call tool="f" index="1"{SEP}', f"{CLOSE}call{SEP}"
ENDED = f"{CLOSE}message{SEP}{END}"
THOUGHT = f"{CLOSE}think{SEP}{OPEN}response{SEP}"


def argument(key: str, kind: str, value: str) -> str:
    return f'{OPEN}argument key="{key}" type="{kind}"{SEP}{value}{CLOSE}argument{SEP}'


TOOLS = {"kimi_k2": [Tool("get_weather")], "kimi_k3": [Tool("f"), Tool("g")]}
GIVEN = {"name", "text", "in_reasoning"}
ROWS = [
    pytest.param(wire_format, level, row, id=f"{wire_format} {level} {row['name']}")
    for wire_format in TOOLS for level in PARSING_LEVELS for row in table(wire_format, level)
]  # fmt: skip


@pytest.mark.parametrize(("wire_format", "level", "row"), ROWS)
def test_the_tables(
    wire_format: str, level: ParsingLevel, row: dict[str, Any], small_compiler: Compiler, k3_small_compiler: Compiler
) -> None:
    is_k2, tools = wire_format == "kimi_k2", TOOLS[wire_format] if level == "tolerant" else None
    for vocabulary in (BYTES, small_compiler.vocabulary) if is_k2 else (K3, k3_small_compiler.vocabulary):
        ids, in_reasoning = ids_of(vocabulary, row["text"]), row.get("in_reasoning", False)
        found = parse_completion(ids, vocabulary, level=level, tools=tools, in_reasoning=in_reasoning)
        assert {
            "content": found.content,
            "reasoning": found.reasoning,
            "calls": [[call.id, call.arguments, list(call.recoveries)] for call in found.tool_calls],
            "undeclared": [call.name for call in found.tool_calls if call.undeclared],
            "cut": [[cut.header, cut.arguments] for cut in found.cut_calls],
            "malformed": list(found.malformed),
        } == {"undeclared": [], "malformed": []} | {key: row[key] for key in row if key not in GIVEN}


def test_the_tables_use_every_recovery() -> None:
    k2, k3 = ({each for row in table(name) for call in row["calls"] for each in call[2]} for name in TOOLS)
    assert k2 | k3 == set(RECOVERIES)
    assert k2 - k3 == {"bare_id", "text_in_section"}


def test_a_call_id_is_read_up_to_4096_bytes() -> None:
    broken = f"{BEGIN}{'x' * 4096}é"  # the limit is between the two bytes of this character
    assert parse_completion(ids_of(BYTES, SECTION + broken), BYTES).malformed == (broken,)


K2_TURN: list[tuple[str, list[Event]]] = [
    (f"x{SECTION}{BEGIN}", [ContentDelta("x")]),
    (f"functions.f:3{ARGUMENTS}", [CallStarted(0, "f", 3)]),
    ("{", [ArgumentsDelta(0, "{")]),
    (f"}}{CALL_END}", [ArgumentsDelta(0, "}"), CallFinished(0)]),
    (f"{SECTION_END}<|im_end|>", []),
]
K3_TURN: list[tuple[str, list[Event]]] = [
    ("H", [ReasoningDelta("H")]),
    (THOUGHT, []),
    ("x", [ContentDelta("x")]),
    (OVER + TOOLS_BEGIN, []),
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


@pytest.mark.parametrize(("vocabulary", "turn"), [(BYTES, K2_TURN), (K3, K3_TURN)], ids=TOOLS)
def test_a_turn_as_events(vocabulary: Vocabulary, turn: list[tuple[str, list[Event]]]) -> None:
    parser = ToolCallParser(vocabulary, in_reasoning=vocabulary is K3)
    for text, events in turn:
        assert parser.feed(ids_of(vocabulary, text)) == events
    assert parser.finish() == []


@pytest.mark.parametrize(
    "breaker", ["section_end", "call_begin", "turn_end", "section_begin", "argument_begin", "think_end"]
)
def test_arguments_broken_off_by_a_marker(small_vocabulary: Vocabulary, breaker: str) -> None:
    parser = ToolCallParser(small_vocabulary)
    events = parser.feed(ids_of(small_vocabulary, BEGUN, breaker)) + parser.finish()
    assert CallCut(0) in events
    assert CallFinished(0) not in events


@each_level
def test_a_character_across_tokens(level: ParsingLevel) -> None:
    parser = ToolCallParser(BYTES, level=level)
    assert [parser.feed([byte]) for byte in "é".encode()] == [[], [ContentDelta("é")]]
    assert parser.feed([0xC3]) == []
    assert parser.finish() == [ContentDelta("\ufffd")]
    parser = ToolCallParser(K3, level=level)
    parser.feed(ids_of(K3, f'{OVER}{TOOLS_BEGIN}{K3_CALL}{OPEN}argument key="k" type="string"{SEP}'))
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
def test_no_calls_render_to_nothing_and_calls_that_cannot_be_written_are_refused(
    small_vocabulary: Vocabulary, call: ToolCall
) -> None:
    with pytest.raises(MalformedCompletion, match=r"calls\[1\]"):
        render_tool_calls([ToolCall("f", 0, "{}"), call], small_vocabulary)
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
    ids = ids_of(K3, f"{OVER}{TOOLS_BEGIN}{K3_CALL}{argument('k', kind, value)}{K3_CALL_END}{TOOLS_END}")
    (call,) = parse_completion(ids, K3, level=level).tool_calls
    assert (call.arguments, call.recoveries) == (f'{{"k": {json_text}}}', ())


@each_level
@pytest.mark.parametrize("stop", ["", END, "[EOS]"])
def test_a_call_of_kimi_k3_cut_off_is_never_a_call(level: ParsingLevel, stop: str) -> None:
    begun = f"hi{OVER}{TOOLS_BEGIN}{K3_CALL}"
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
