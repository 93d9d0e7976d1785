"""Kimi K3's turns at the strict level, and laws that hold at both levels."""

import json
import random
import time
from typing import Any

import pytest

from constrained_k2 import Compiler, ToolCall, ToolCallParser, Vocabulary, parse_completion
from constrained_k2.formats.kimi_k3 import KIMI_K3, SPECIAL_TOKENS
from constrained_k2.parsing import PARSING_LEVELS, CutCall
from constrained_k2.parsing.events import (
    ArgumentsDelta,
    CallCut,
    CallFinished,
    CallStarted,
    ContentDelta,
    Event,
    HeaderCut,
    MalformedDelta,
    ReasoningDelta,
)
from constrained_k2.parsing.parser import ParsingLevel
from constrained_k2.request.spec import Tool
from tests.kit.budget import tries
from tests.kit.data import data
from tests.parsing.transcripts import ids_of_text
from tests.parsing.xtml import CLOSE, END, OPEN, SEP, Piece, Turn, encoded, random_turn, spoil, written

BYTES = Vocabulary.of_bytes(KIMI_K3)
RESPONDED = f"{CLOSE}response{SEP}"
TOOLS, TOOLS_END = f"{OPEN}tools{SEP}", f"{CLOSE}tools{SEP}"
CALL, CALL_END = f'{OPEN}call tool="f" index="1"{SEP}', f"{CLOSE}call{SEP}"
ENDED = f"{CLOSE}message{SEP}{END}"


@pytest.fixture(scope="module")
def small(k3_small_compiler: Compiler) -> Vocabulary:
    return k3_small_compiler.vocabulary


@pytest.fixture(scope="module")
def real(k3_real_compiler: Compiler) -> Vocabulary:
    return k3_real_compiler.vocabulary


def argument(key: str, kind: str, value: str) -> str:
    return f'{OPEN}argument key="{key}" type="{kind}"{SEP}{value}{CLOSE}argument{SEP}'


def read(text: str, *, level: ParsingLevel = "strict", **options: Any) -> Any:
    return parse_completion(ids_of_text(text, BYTES), BYTES, level=level, **options)


def test_a_turn_as_events() -> None:
    parser = ToolCallParser(BYTES, in_reasoning=True)

    def feed(text: str) -> list[Event]:
        return parser.feed(ids_of_text(text, BYTES))

    assert feed("H") == [ReasoningDelta("H")]
    assert feed(f"{CLOSE}think{SEP}{OPEN}response{SEP}") == []
    assert feed("x") == [ContentDelta("x")]
    assert feed(RESPONDED + TOOLS) == []
    assert feed(f'{OPEN}call tool="f" index="3"') == []
    assert feed(SEP) == [CallStarted(0, "f", 3)]
    assert feed(f'{OPEN}argument key="a&quot;" type="string"{SEP}') == [ArgumentsDelta(0, '{"a\\"": ')]
    assert feed('"') == [ArgumentsDelta(0, '"\\"')]
    assert feed("\n") == [ArgumentsDelta(0, "\\n")]
    assert feed(f"{CLOSE}argument{SEP}") == [ArgumentsDelta(0, '"')]
    assert feed(f'{OPEN}argument key="b" type="array"{SEP}[') == [ArgumentsDelta(0, ', "b": '), ArgumentsDelta(0, "[")]
    assert feed("1") == [ArgumentsDelta(0, "1")]
    assert feed(f"]{CLOSE}argument{SEP}{CALL_END}") == [ArgumentsDelta(0, "]"), ArgumentsDelta(0, "}"), CallFinished(0)]
    assert feed(TOOLS_END + ENDED) == []
    assert parser.finish() == []


def expected(turn: Turn) -> tuple[str, str, list[tuple[str, int, str]]]:
    """The reasoning, the response and the calls of a turn, with arguments as JSON text in their own spelling."""
    calls = [
        (name, number, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))
        for number, (name, arguments) in enumerate(turn.calls, 1)
    ]
    return turn.reasoning or "", turn.response, calls


@pytest.mark.parametrize("level", PARSING_LEVELS)
def test_what_is_written_is_read(level: ParsingLevel, small: Vocabulary) -> None:
    chance = random.Random(5)
    calls = 0
    count = tries(1500, fast=300, everything=5000)
    for number in range(count):
        turn = random_turn(chance)
        vocabulary = (BYTES, small)[number % 2]
        ids = encoded(written(turn), vocabulary)
        # A response may spell a call: without tools, the tolerant level takes it for text.
        tools = [Tool(name) for name, _ in turn.calls] if level == "strict" else None
        found = parse_completion(ids, vocabulary, in_reasoning=turn.reasoning is not None, level=level, tools=tools)
        found_calls = [(call.name, call.index, call.arguments) for call in found.tool_calls]
        assert (found.reasoning, found.content, found_calls) == expected(turn)
        assert not (found.cut_calls or found.malformed)
        assert not any(call.recoveries or call.written or call.undeclared for call in found.tool_calls)
        calls += len(found_calls)
    assert calls > count


@pytest.mark.parametrize("level", PARSING_LEVELS)
def test_goldens(level: ParsingLevel, real: Vocabulary) -> None:
    """Every assistant message in the rendered histories is a turn."""
    opening = [real.special_tokens[OPEN], *real.encode("message"), *real.encode(" role")]
    opening += [*real.encode('="'), *real.encode("assistant"), *real.encode('"')]
    turns = calls = 0
    for path in sorted(data("kimi_k3/rendered").glob("*.json")):
        golden = json.loads(path.read_text("utf-8"))
        request, ids = golden["request"], golden["ids"]
        starts = [at for at in range(len(ids)) if ids[at : at + len(opening)] == opening]
        messages = [message for message in request["messages"] if message["role"] == "assistant"]
        for start, message in zip(starts, messages, strict=False):  # the last start may be the generation prompt
            begin, end = (ids.index(token, start) + 1 for token in (real.special_tokens[SEP], real.format.turn_end))
            found = parse_completion(ids[begin:end], real, level=level)
            thinks = request["options"].get("thinking", True)
            reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
            assert found.reasoning == (reasoning if thinks else ""), path
            assert found.content == (message.get("content") or ""), path
            functions = [call["function"] for call in message.get("tool_calls") or ()]
            assert [call.name for call in found.tool_calls] == [function["name"] for function in functions]
            assert [call.index for call in found.tool_calls] == list(range(1, len(functions) + 1))
            assert [call.recoveries for call in found.tool_calls] == [()] * len(functions)
            for call, function in zip(found.tool_calls, functions, strict=True):
                given = function.get("arguments") or {}
                if isinstance(given, str):
                    assert call.arguments == given, path
                else:
                    assert json.loads(call.arguments) == given, path
            turns, calls = turns + 1, calls + len(functions)
    assert turns >= 8
    assert calls >= 8


@pytest.mark.parametrize(
    ("kind", "value", "json_text"),
    [
        ("number", "1e2", "1e2"),
        ("number", "9" * 5000, "9" * 5000),
        ("array", "[1,2 , 3]", "[1,2 , 3]"),
        ("object", '{"a":"}]{","b":{"c":[]}}', '{"a":"}]{","b":{"c":[]}}'),
        ("object", ' {"a": "\\"}"}\n', ' {"a": "\\"}"}\n'),
        ("boolean", "true", "true"),
        ("null", "null", "null"),
        ("string", "", '""'),
        ("string", "1", '"1"'),
    ],
    ids=str,
)
@pytest.mark.parametrize("level", PARSING_LEVELS)
def test_values_keep_their_own_spelling(kind: str, value: str, json_text: str, level: ParsingLevel) -> None:
    (call,) = read(f"{RESPONDED}{TOOLS}{CALL}{argument('k', kind, value)}{CALL_END}{TOOLS_END}", level=level).tool_calls
    assert call.arguments == f'{{"k": {json_text}}}'
    assert not call.recoveries


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("number", '1, "x": 2'), ("number", ""), ("number", "true"), ("number", "NaN"), ("boolean", "True"),
        ("object", '{}, "x": {}'), ("object", '{"a": 1}} '), ("object", "[1]"), ("object", '{"a": foo}'),
        ("array", "[1"), ("array", "[1}"), ("array", "[1,]"), ("array", "x"),
    ],
)  # fmt: skip
def test_a_value_without_its_type_cuts_the_call(kind: str, value: str) -> None:
    found = read(f"{RESPONDED}{TOOLS}{CALL}{argument('k', kind, value)}{CALL_END}{CALL}{CALL_END}{TOOLS_END}")
    assert found.tool_calls == (ToolCall("f", 1, "{}"),)
    assert found.cut_calls == (CutCall("functions.f:1", f'{{"k": {value}'),)
    assert found.malformed == (f"{CLOSE}argument{SEP}{CALL_END}",)


TURN = f"hi{RESPONDED}{TOOLS}{CALL}{argument('a', 'string', 'x')}{argument('b', 'object', '{}')}{CALL_END}"


@pytest.mark.parametrize("level", PARSING_LEVELS)
@pytest.mark.parametrize("stop", ["", END, "[EOS]"])
def test_a_call_cut_off_is_never_a_call(level: ParsingLevel, stop: str) -> None:
    ids = ids_of_text(TURN, BYTES)
    begun = len(ids_of_text(f"hi{RESPONDED}{TOOLS}{CALL}", BYTES))
    first = f"hi{RESPONDED}{TOOLS}{CALL}{argument('a', 'string', 'x')}"
    # A model that stopped behind an argument has only left out the call's end.
    ends = {len(ids_of_text(text, BYTES)) for text in (first, TURN.removesuffix(CALL_END))}
    ends = ends if stop and level == "tolerant" else set()
    for end in range(len(ids)):
        found = parse_completion([*ids[:end], *ids_of_text(stop, BYTES)], BYTES, level=level)
        assert [call.recoveries for call in found.tool_calls] == [("no_call_end",)] * (end in ends)
        assert found.content.startswith("hi"[:end])
        assert bool(found.cut_calls) >= (end >= begun and end not in ends)
    assert parse_completion(ids, BYTES, level=level).tool_calls == (ToolCall("f", 1, '{"a": "x", "b": {}}'),)


@pytest.mark.parametrize(
    "header",
    [
        'call index="1" tool="f"', 'call tool="f"', 'call tool="f" index="0"', 'call tool="f" index="01"',
        'call tool="" index="1"', 'call tool="a&b" index="1"', 'call  tool="f" index="1"', 'call tool="f" index="1" ',
        'call tool="a\nb" index="1"', "call",
    ],
)  # fmt: skip
def test_a_call_with_another_tag_is_malformed_and_kept(header: str) -> None:
    broken = f"{OPEN}{header}{SEP}{argument('a', 'string', 'x')}{CALL_END}"
    found = read(f"{RESPONDED}{TOOLS}{broken}{CALL}{CALL_END}{TOOLS_END}{ENDED}")
    assert found.malformed == (broken,)
    assert found.tool_calls == (ToolCall("f", 1, "{}"),)


@pytest.mark.parametrize(
    ("inside", "kept"),
    [
        (f'{OPEN}argument type="string" key="a"{SEP}x{CLOSE}argument{SEP}', None),
        (f'{OPEN}argument key="a"{SEP}x{CLOSE}argument{SEP}', None),
        (argument("a", "integer", "1"), None),
        (argument("a", "string", "x") + f'{OPEN}json type="object"{SEP}{{}}{CLOSE}json{SEP}', None),
        ("x", None),
        (END, ""),
        (f"{OPEN}tools{SEP}", None),
    ],
)
def test_a_call_that_breaks_the_format_is_cut(inside: str, kept: str | None) -> None:
    found = read(f"{RESPONDED}{TOOLS}{CALL}{inside}{CALL_END}{CALL}{CALL_END}{TOOLS_END}")
    assert [cut.header for cut in found.cut_calls] == ["functions.f:1"]
    assert found.tool_calls == (ToolCall("f", 1, "{}"),)
    assert found.malformed
    if kept is None and "json" not in inside:
        assert found.malformed == (f"{inside}{CALL_END}",)


def test_text_between_blocks_is_malformed() -> None:
    found = read(f"hi{RESPONDED}a{TOOLS}b{CALL}{CALL_END}c{TOOLS_END}d{ENDED}e")
    assert (found.content, found.malformed) == ("hi", ("ab", "cde"))
    assert len(found.tool_calls) == 1


def test_tags_that_are_not_due_are_text() -> None:
    text = f"a{TOOLS}{CALL}{CALL_END}{OPEN}foo{SEP}{OPEN}{CLOSE}"
    assert read(f"{text}b{RESPONDED}").content == f"{text}b"
    assert read(f"{text}b", in_reasoning=True).reasoning == f"{text}b"


def test_a_prompt_that_opens_the_message_alone() -> None:
    found = read(f"{OPEN}think{SEP}hm{CLOSE}think{SEP}{OPEN}response{SEP}hi{RESPONDED}{ENDED}")
    assert (found.reasoning, found.content, found.malformed) == ("hm", "hi", ())


@pytest.mark.parametrize("level", PARSING_LEVELS)
def test_a_character_across_tokens(level: ParsingLevel) -> None:
    parser = ToolCallParser(BYTES, level=level)
    parser.feed(ids_of_text(f'{RESPONDED}{TOOLS}{CALL}{OPEN}argument key="k" type="string"{SEP}', BYTES))
    assert [parser.feed([byte]) for byte in "é".encode()] == [[], [ArgumentsDelta(0, '"é')]]
    assert parser.feed([0xC3]) == []
    events = parser.feed(ids_of_text(f"{CLOSE}argument{SEP}", BYTES))
    assert "".join(event.text for event in events if isinstance(event, ArgumentsDelta)) == '\ufffd"'


def made_up(count: int, seed: int) -> list[tuple[list[Piece], bool]]:
    """Turns, two thirds of them spoilt, and whether the prompt opened the reasoning."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        turn = random_turn(chance)
        pieces = written(turn)
        for _ in range(number % 3 and chance.randint(1, 3)):
            pieces = spoil(pieces, chance)
        found.append((pieces, (turn.reasoning is not None) ^ (number % 10 == 0)))
    return found


@pytest.mark.parametrize("level", PARSING_LEVELS)
def test_any_split_gives_the_same_events(level: ParsingLevel, small: Vocabulary) -> None:
    chance = random.Random(1)
    calls = 0
    for pieces, in_reasoning in made_up(400, seed=2):
        ids = encoded(pieces, small)
        events = []
        for count in (0, 2, None):
            parser = ToolCallParser(small, level=level, in_reasoning=in_reasoning, tools=[Tool("get_weather")])
            cuts = list(range(len(ids))) if count is None else sorted(chance.choices(range(len(ids) + 1), k=count))
            found: list[Event] = []
            for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
                found += parser.feed(ids[start:end])
            events.append(found + parser.finish())
        assert events[0] == events[1] == events[2]
        calls += sum(isinstance(event, CallFinished) for event in events[0])
    assert calls > 100


SENTINELS = "ZJQ"  # no tag, no JSON escape and no text of the generators has these


def check_that_nothing_disappears(ids: list[int], vocabulary: Vocabulary, level: ParsingLevel, **options: Any) -> None:
    """Every sentinel is in an event or in the dropped structure, and the events are well formed."""
    parser: Any = ToolCallParser(vocabulary, level=level, **options)
    structure: list[str] = []
    parser._reader._structure = structure.append
    events = [*parser.feed(ids), *parser.finish()]
    kept = structure + [
        event.text
        for event in events
        if isinstance(event, ContentDelta | ReasoningDelta | ArgumentsDelta | MalformedDelta | HeaderCut)
    ]
    kept += [event.name for event in events if isinstance(event, CallStarted)]
    given, found = vocabulary.decode(ids), "".join(kept)
    for sentinel in SENTINELS:
        assert found.count(sentinel) >= given.count(sentinel), given
    started: list[int] = []
    ended: list[int] = []
    for event in events:
        match event:
            case CallStarted(position):
                assert position == len(started) == len(ended)
                started.append(position)
            case CallFinished(position) | CallCut(position):
                ended.append(position)
    assert ended == started == list(range(len(started)))
    arguments: dict[int, str] = {}
    for event in events:
        if isinstance(event, ArgumentsDelta):
            arguments[event.position] = arguments.get(event.position, "") + event.text
    for event in events:
        if isinstance(event, CallFinished) and "json" not in given:
            assert isinstance(json.loads(arguments[event.position]), dict)


@pytest.mark.parametrize("level", PARSING_LEVELS)
@pytest.mark.parametrize(
    "count",
    [tries(1500, fast=300, everything=1500), pytest.param(tries(8_000, everything=50_000), marks=pytest.mark.slow)],
)
def test_nothing_a_model_can_write_raises_or_disappears(level: ParsingLevel, count: int, small: Vocabulary) -> None:
    chance = random.Random(count)
    for number, (pieces, in_reasoning) in enumerate(made_up(count, seed=count)):
        marked: list[Piece] = []
        for text, is_special in pieces:
            marked.append((text, is_special))
            if chance.random() < 0.1:
                marked.append((chance.choice(SENTINELS), False))
        vocabulary = (BYTES, small)[number % 2]
        ids = encoded(marked, vocabulary)
        if chance.random() < 0.1:
            ids.insert(chance.randrange(len(ids) + 1), chance.randrange(vocabulary.size))
        options = {"in_reasoning": in_reasoning, "calls": number % 7 > 0}
        check_that_nothing_disappears(ids, vocabulary, level, tools=[Tool("get_weather"), Tool("search")], **options)


@pytest.mark.parametrize("level", PARSING_LEVELS)
def test_random_tokens_neither_raise_nor_disappear(level: ParsingLevel) -> None:
    chance = random.Random(9)
    words = ["call", "argument", "json", "tools", "think", "response", "message", " key", " type", ' tool="f"',
             ' index="1"', '="k"', '="string"', '="object"', '="number"', "{", "}", '"', "Z", " ", "\n", "J"]  # fmt: skip
    for number in range(tries(4000, fast=800, everything=8000)):
        pieces: list[Piece] = []
        for _ in range(chance.randrange(40)):
            if chance.random() < 0.5:
                pieces.append(
                    (chance.choice([OPEN, CLOSE, SEP, OPEN, SEP, END, "[EOS]"][: 5 + 2 * (number % 2)]), True)
                )
            else:
                pieces.append((chance.choice(words), False))
        check_that_nothing_disappears(encoded(pieces, BYTES), BYTES, level, in_reasoning=number % 2 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("level", PARSING_LEVELS)
@pytest.mark.parametrize(
    "unit",
    [
        f"{OPEN}call tool=", OPEN, f"{OPEN}call ", f'{OPEN}call a="b" ', ' a="b"',
        f'{RESPONDED}{TOOLS}{CALL}{OPEN}argument key="k" type="object"{SEP}' + '{"a":[', "[[[", " ", '\\"',
    ],
    ids=range(9),
)  # fmt: skip
def test_hostile_turns_are_read_in_time(level: ParsingLevel, unit: str) -> None:
    """Work is linear in the length: quadratic work on these would take minutes."""
    prefix = f'{RESPONDED}{TOOLS}{CALL}{OPEN}argument key="k" type="object"{SEP}{{"a": "' if unit == '\\"' else ""
    prefix = f"{OPEN}call" if unit == ' a="b"' else prefix
    ids = ids_of_text(prefix + unit * (200_000 // len(unit)), BYTES)
    start = time.thread_time()
    parse_completion(ids, BYTES, level=level)
    assert time.thread_time() - start < 10


def test_special_tokens_without_a_part_in_the_format_are_text(small: Vocabulary) -> None:
    ids = [*small.encode("a"), small.special_tokens[SPECIAL_TOKENS[18]], *small.encode("b")]
    for level in PARSING_LEVELS:
        assert parse_completion(ids, small, level=level).content == "a<|media_begin|>b"
