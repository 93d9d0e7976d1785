"""The tolerant level as a stream: any split gives the same events, and no text disappears."""

import json
import random
from dataclasses import dataclass
from typing import Any

import pytest

from constrained_k2 import ToolCallParser, Vocabulary
from constrained_k2.parsing import PARSING_LEVELS
from constrained_k2.parsing.events import (
    ArgumentsDelta,
    ArgumentsRecovered,
    CallFinished,
    CallStarted,
    ContentDelta,
    Event,
    HeaderCut,
    ReasoningDelta,
)
from constrained_k2.parsing.parser import ParsingLevel
from constrained_k2.request.spec import Tool
from tests.kit.budget import tries
from tests.parsing.transcripts import ids_of_text, made_up, table

BYTES = Vocabulary.of_bytes()
ROWS = table()
TOOLS = [Tool("get_weather")]


def events_in_chunks(
    ids: list[int], cuts: list[int], vocabulary: Vocabulary, level: ParsingLevel, *, in_reasoning: bool
) -> list[Event]:
    parser = ToolCallParser(vocabulary, level=level, tools=TOOLS, in_reasoning=in_reasoning)
    events: list[Event] = []
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        events += parser.feed(ids[start:end])
    return events + parser.finish()


def check_splits(splits: int, vocabulary: Vocabulary, level: ParsingLevel) -> int:
    """Split 500 transcripts so many times each; how many of them hold a call."""
    chance = random.Random(7)
    by_hand = [ids_of_text(row["text"], vocabulary) for row in ROWS]
    calls = 0
    for number, ids in enumerate([*by_hand, *made_up(500 - len(by_hand), vocabulary)]):
        in_reasoning = number % 5 == 0
        expected = events_in_chunks(ids, [], vocabulary, level, in_reasoning=in_reasoning)
        calls += any(isinstance(event, CallFinished) for event in expected)
        for split in range(splits):
            count = (0, 1, 3, len(ids))[split % 4]  # also one token at a time
            cuts = sorted(chance.choices(range(len(ids) + 1), k=count)) if split % 4 < 3 else list(range(len(ids)))
            found = events_in_chunks(ids, cuts, vocabulary, level, in_reasoning=in_reasoning)
            assert found == expected, vocabulary.decode(ids)
    return calls


@pytest.mark.parametrize("level", PARSING_LEVELS)
def test_any_split_gives_the_same_events(small_vocabulary: Vocabulary, level: ParsingLevel) -> None:
    assert check_splits(2, small_vocabulary, level) > 150


@pytest.mark.slow
def test_many_splits_give_the_same_events(small_vocabulary: Vocabulary) -> None:
    assert check_splits(tries(20, everything=100), small_vocabulary, "tolerant") > 150
    assert check_splits(tries(20, everything=100), BYTES, "tolerant") > 150


@dataclass(frozen=True)
class Structure:
    """Text that no event contains."""

    text: str
    may_be_text: bool  # between the markers of a section, where text is dropped


def everything(ids: list[int], vocabulary: Vocabulary, *, in_reasoning: bool = False, tools: Any = None) -> str:
    """Return the text of the events in order, with the dropped structure between them."""
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
    for marker in sorted(BYTES.special_tokens, key=len, reverse=True):
        text = text.replace(marker, " ")
    text = text.replace("<|tool_call_section_begin|>", " ").strip()
    assert not text or text.rpartition(":")[2].isdigit(), text


def test_nothing_of_500_transcripts_disappears(small_vocabulary: Vocabulary) -> None:
    for vocabulary in (small_vocabulary, BYTES):
        for number, ids in enumerate(made_up(500, vocabulary, seed=1)):
            assert everything(ids, vocabulary, tools=TOOLS if number % 2 else None) == vocabulary.decode(ids)


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_random_ids_neither_raise_nor_disappear(small_vocabulary: Vocabulary, count: int) -> None:
    chance = random.Random(count)
    markers = [small_vocabulary.special_tokens[text] for text in small_vocabulary.format.marker_texts.values()]
    spelled = [small_vocabulary.encode(text) for text in BYTES.special_tokens]
    likely = [*map(small_vocabulary.encode, ["functions.f:0", "{", '{"a": 1', ",", "}", "'", '"', "\n", " "]), *spelled]
    for number in range(count):
        ids: list[int] = []
        for _ in range(chance.randrange(60)):
            kind = chance.random()
            ids += (
                [chance.randrange(small_vocabulary.size)]
                if kind < 0.2
                else [chance.choice(markers)]
                if kind < 0.5
                else chance.choice(likely)
            )
        assert everything(ids, small_vocabulary, in_reasoning=number % 2 == 0) == small_vocabulary.decode(ids)
