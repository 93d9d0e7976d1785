"""Both parsing levels on streams of both formats: any split gives the same events, no text disappears, time is linear."""

import json
import random
import time
from dataclasses import dataclass
from typing import Any

import pytest

from constrained_k2 import Compiler, ToolCall, ToolCallParser, Vocabulary, parse_completion, render_tool_calls
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.parsing import PARSING_LEVELS
from constrained_k2.parsing.events import (
    ArgumentsDelta,
    ArgumentsRecovered,
    CallCut,
    CallDeclined,
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
from tests.kit.k3_turns import CLOSE, END, OPEN, SEP
from tests.kit.turns import is_k3
from tests.parsing.transcripts import Piece, encoded, ids_of_text, made_up, table

BYTES = {"small_compiler": Vocabulary.of_bytes(), "k3_small_compiler": Vocabulary.of_bytes(KIMI_K3)}
TOOLS = [Tool("get_weather"), Tool("search")]
each_level = pytest.mark.parametrize("level", PARSING_LEVELS)
Vocabularies = tuple[Vocabulary, Vocabulary]


@pytest.fixture(params=BYTES, ids=["Kimi K2", "Kimi K3"])
def vocabularies(request: pytest.FixtureRequest) -> Vocabularies:
    """Two vocabularies of a format: a small one, and that of the bytes."""
    compiler: Compiler = request.getfixturevalue(request.param)
    return compiler.vocabulary, BYTES[request.param]


def check_splits(splits: int, vocabulary: Vocabulary, level: ParsingLevel) -> int:
    """Split 500 transcripts so many times each; how many calls they hold."""
    chance, calls = random.Random(7), 0
    rows = table("kimi_k3" if is_k3(vocabulary) else "kimi_k2")
    by_hand = [(ids_of_text(row["text"], vocabulary), at % 5 == 0) for at, row in enumerate(rows)]
    others = [(encoded(pieces, vocabulary), opened) for pieces, opened in made_up(500 - len(by_hand), vocabulary)]
    for ids, in_reasoning in by_hand + others:
        found: list[list[Event]] = []
        for count in (0, *(range(1, splits + 1))):
            cuts = [*range(len(ids))]
            if count % 4 < 3:
                cuts = sorted(chance.choices(range(len(ids) + 1), k=(0, 1, 3)[count % 3]))
            parser = ToolCallParser(vocabulary, level=level, tools=TOOLS[:1], in_reasoning=in_reasoning)
            events = [
                event
                for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True)
                for event in parser.feed(ids[start:end])
            ]
            found.append(events + parser.finish())
            assert found[0] == found[-1], vocabulary.decode(ids)
        calls += sum(isinstance(event, CallFinished) for event in found[0])
    return calls


@each_level
@pytest.mark.parametrize("splits", [3, pytest.param(tries(20, everything=100), marks=pytest.mark.slow)])
def test_any_split_gives_the_same_events(vocabularies: Vocabularies, level: ParsingLevel, splits: int) -> None:
    """Also a token at a time."""
    for vocabulary in vocabularies if splits > 3 and level == "tolerant" else vocabularies[:1]:
        assert check_splits(splits, vocabulary, level) > 150


@dataclass(frozen=True)
class Structure:
    """Text that no event contains."""

    text: str
    may_be_text: bool  # between the markers of a section, where text is dropped


def everything(ids: list[int], vocabulary: Vocabulary, *, in_reasoning: bool = False, tools: Any = None) -> str:
    """Return the text of Kimi K2's events in order, with the dropped structure between them."""
    parser: Any = ToolCallParser(vocabulary, level="tolerant", in_reasoning=in_reasoning, tools=tools)
    reader = parser._reader
    reader._structure = lambda text: parser._events.append(Structure(text, reader._in_section and reader._trusted))
    pieces: list[str] = []
    arguments: dict[int, int] = {}  # position of a call -> where in pieces its arguments stand
    for event in [*parser.feed(ids), *parser.finish()]:
        match event:
            case ContentDelta(text) | ReasoningDelta(text) | HeaderCut(text):
                pieces.append(text)
            case Structure(text, may_be_text):
                if not may_be_text:
                    check_structure(text)
                pieces.append(text)
            case CallStarted(position):
                arguments[position] = len(pieces)
                pieces.append("")
            case ArgumentsDelta(position, text):
                assert arguments[position] == len(pieces) - 1
                pieces[-1] += text
            case ArgumentsRecovered(position, written):
                assert isinstance(json.loads(pieces[arguments[position]]), dict)
                pieces[arguments[position]] = written
    return "".join(pieces)


def check_structure(text: str) -> None:
    """Only markers, ids and blanks are dropped."""
    for marker in sorted(BYTES["small_compiler"].special_tokens, key=len, reverse=True):
        text = text.replace(marker, " ")
    text = text.replace("<|tool_call_section_begin|>", " ").strip()
    assert not text or text.rpartition(":")[2].isdigit(), text


def test_the_whole_text_of_500_transcripts_is_kept(small_vocabulary: Vocabulary) -> None:
    for vocabulary in (small_vocabulary, BYTES["small_compiler"]):
        for number, (pieces, _) in enumerate(made_up(500, vocabulary, seed=1)):
            ids = encoded(pieces, vocabulary)
            assert everything(ids, vocabulary, tools=TOOLS[:1] if number % 2 else None) == vocabulary.decode(ids)


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_the_whole_text_of_random_ids_is_kept(small_vocabulary: Vocabulary, count: int) -> None:
    chance = random.Random(count)
    markers = [small_vocabulary.special_tokens[text] for text in small_vocabulary.format.marker_texts.values()]
    spelled = [small_vocabulary.encode(text) for text in BYTES["small_compiler"].special_tokens]
    likely = [*map(small_vocabulary.encode, ["functions.f:0", "{", '{"a": 1', ",", "}", "'", '"', "\n", " "]), *spelled]
    for number in range(count):
        ids: list[int] = []
        for _ in range(chance.randrange(60)):
            kind = chance.random()
            if kind < 0.5:
                ids.append(chance.randrange(small_vocabulary.size) if kind < 0.2 else chance.choice(markers))
            else:
                ids += chance.choice(likely)
        assert everything(ids, small_vocabulary, in_reasoning=number % 2 == 0) == small_vocabulary.decode(ids)


SENTINELS = "ZJQ"  # no tag, no JSON escape and no text of the generators has these


def check_that_nothing_disappears(ids: list[int], vocabulary: Vocabulary, level: ParsingLevel, **options: Any) -> None:
    """Every sentinel is in an event or in the dropped structure, and the events are well formed."""
    parser: Any = ToolCallParser(vocabulary, level=level, **options)
    structure: list[str] = []
    parser._reader._structure = structure.append
    events = [*parser.feed(ids), *parser.finish()]
    texts = ContentDelta | ReasoningDelta | ArgumentsDelta | MalformedDelta | HeaderCut | CallDeclined
    kept = structure + [event.text for event in events if isinstance(event, texts)]
    kept += [event.name for event in events if isinstance(event, CallStarted)]
    given, found = vocabulary.decode(ids), "".join(kept)
    for sentinel in SENTINELS:
        assert found.count(sentinel) >= given.count(sentinel), given
    started: list[int] = []
    ended: list[int] = []
    arguments: dict[int, str] = {}
    for event in events:
        match event:
            case CallStarted(position):
                assert position == len(started) == len(ended)
                started.append(position)
            case CallFinished(position) | CallCut(position):
                ended.append(position)
            case ArgumentsDelta(position, text):
                arguments[position] = arguments.get(position, "") + text
    assert ended == started == list(range(len(started)))
    if is_k3(vocabulary) and "json" not in given:
        for event in events:
            assert not isinstance(event, CallFinished) or isinstance(json.loads(arguments[event.position]), dict)


@each_level
@pytest.mark.parametrize(
    "count",
    [tries(1500, fast=300, everything=1500), pytest.param(tries(8_000, everything=50_000), marks=pytest.mark.slow)],
)
def test_nothing_a_model_can_write_raises_or_disappears(
    level: ParsingLevel, count: int, vocabularies: Vocabularies
) -> None:
    chance = random.Random(count)
    for number, (pieces, in_reasoning) in enumerate(made_up(count, vocabularies[0], seed=count)):
        marked: list[Piece] = []
        for text, is_special in pieces:
            marked.append((text, is_special))
            if chance.random() < 0.1:
                marked.append((chance.choice(SENTINELS), False))
        vocabulary = vocabularies[number % 2]
        ids = encoded(marked, vocabulary)
        if chance.random() < 0.1:
            ids.insert(chance.randrange(len(ids) + 1), chance.randrange(vocabulary.size))
        options = {"in_reasoning": in_reasoning, "calls": number % 7 > 0}
        check_that_nothing_disappears(ids, vocabulary, level, tools=TOOLS, **options)


@each_level
def test_random_tokens_neither_raise_nor_disappear(level: ParsingLevel, vocabularies: Vocabularies) -> None:
    chance = random.Random(9)
    words = ["{", "}", '"', "Z", " ", "\n", "J", "functions.f:0", "Q:1", "call", "argument", "json", "tools", "think", "response", "message",
             " key", " type", ' tool="f"', ' index="1"', '="k"', '="string"', '="object"', '="number"']  # fmt: skip
    words = words if is_k3(vocabularies[0]) else words[:9]
    for number in range(tries(4000, fast=800, everything=8000)):
        vocabulary = vocabularies[number % 2]
        markers = [*vocabulary.format.marker_texts.values()]
        if is_k3(vocabulary):
            markers = [OPEN, CLOSE, SEP, OPEN, SEP, END, "[EOS]"][: 5 + 2 * (number % 4 < 2)]
        ids: list[int] = []
        for _ in range(chance.randrange(40)):
            kind = chance.random()
            if kind < 0.1:
                ids.append(chance.randrange(vocabulary.size))
            else:
                ids += encoded(
                    [(chance.choice(markers), True) if kind < 0.5 else (chance.choice(words), False)], vocabulary
                )
        check_that_nothing_disappears(ids, vocabulary, level, in_reasoning=number % 4 < 2)


OBJECT = (
    f'<|close|>response{SEP}{OPEN}tools{SEP}{OPEN}call tool="f" index="1"{SEP}{OPEN}argument key="k" type="object"{SEP}'
)
BEHIND = {' a="b"': f"{OPEN}call", '\\"': OBJECT + '{"a": "'}


@pytest.mark.slow
@each_level
@pytest.mark.parametrize(
    "unit",
    [f"{OPEN}call tool=", OPEN, f"{OPEN}call ", f'{OPEN}call a="b" ', ' a="b"', OBJECT + '{"a":[', "[[[", " ", '\\"'],
    ids=range(9),
)  # fmt: skip
def test_hostile_turns_of_kimi_k3_are_read_in_time(level: ParsingLevel, unit: str) -> None:
    """Work is linear in the length: quadratic work on these would take minutes."""
    vocabulary = BYTES["k3_small_compiler"]
    ids = ids_of_text(BEHIND.get(unit, "") + unit * (200_000 // len(unit)), vocabulary)
    start = time.thread_time()
    parse_completion(ids, vocabulary, level=level)
    assert time.thread_time() - start < 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "written",
    ["[" * 100_000, '{"a":' * 100_000, '"' + '\\"' * 100_000, "{'" * 100_000, "{" + "1" * 100_000, "{\"a\": '" + "x" * 100_000],
    ids=["brackets", "objects", "quotes", "apostrophes", "digits", "long"],
)  # fmt: skip
def test_hostile_arguments_of_kimi_k2_are_read_in_time(written: str) -> None:
    """Quadratic work on these would take minutes, and is ended by the suite's timeout."""
    vocabulary = BYTES["small_compiler"]
    ids = render_tool_calls([ToolCall("f", 0, written)], vocabulary)
    (call,) = parse_completion(ids, vocabulary, level="tolerant").cut_calls
    assert call.arguments == written
