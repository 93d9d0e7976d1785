"""Transcripts for the parsers: as ids of a vocabulary; written by hand, random, and randomly spoilt."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from constrained_k2 import KIMI_K2, ToolCall, Vocabulary

TABLE = Path(__file__).with_name("table.jsonl")
MARKERS = ("section_begin", "section_end", "call_begin", "argument_begin", "call_end")
Part = str | int | tuple[str]  # text, a token id, or the text of a marker to be spelled out

_TEXTS = ["", "Let me see. ", "北京 🌦️ café", "\n", " ", "a < b <| c <|tool", "<|tool_call_", "{}", "Note: 3", "é" * 9]
_NAMES = ["get_weather", "search", "a.b-c", "Read", "名"]
_VALUES: list[Any] = [
    "x", "北京 🌦️", 'q"\\', "\n\t", "<|tool_call_end|>", "it's", 1, -2.5e9, True, None, [], {}, [1, [2]],
]  # fmt: skip
_KEYS = ["city", "days", "名", "a b", "'"]


def ids_of_text(text: str, vocabulary: Vocabulary) -> list[int]:
    """Encode marker texts as tokens; ``<~|…|>`` is a marker spelled out of ordinary tokens."""
    ids: list[int] = []
    start = 0
    for found in re.finditer("|".join(map(re.escape, vocabulary.special_tokens)), text):
        ids += vocabulary.encode(text[start : found.start()].replace("<~|", "<|"))
        ids.append(vocabulary.special_tokens[found[0]])
        start = found.end()
    return ids + vocabulary.encode(text[start:].replace("<~|", "<|"))


def table() -> list[dict[str, Any]]:
    """The transcripts made by hand, with what they are read as."""
    return [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]


def random_call(chance: random.Random, index: int) -> ToolCall:
    arguments = {key: chance.choice(_VALUES) for key in chance.sample(_KEYS, chance.randrange(4))}
    written = json.dumps(arguments, ensure_ascii=chance.random() < 0.3, indent=chance.choice([None, None, 2]))
    return ToolCall(chance.choice(_NAMES), index, written)


def random_parts(chance: random.Random, vocabulary: Vocabulary) -> list[Part]:
    """A valid turn."""
    markers = vocabulary.format
    parts: list[Part] = []
    if chance.random() < 0.4:
        parts += [markers.think_begin, chance.choice(_TEXTS), markers.think_end]
    parts.append(chance.choice(_TEXTS))
    calls = [random_call(chance, index) for index in range(chance.choice([0, 1, 1, 2, 3]))]
    if calls:
        parts.append(markers.section_begin)
        for call in calls:
            parts += [markers.call_begin, call.id, markers.argument_begin, call.arguments, markers.call_end]
        parts.append(markers.section_end)
    return [*parts, markers.turn_end]


def spoil(parts: list[Part], chance: random.Random, vocabulary: Vocabulary) -> list[Part]:
    """Spoil a turn in one way."""
    location = chance.randrange(len(parts) + 1)
    any_token = chance.choice([*vocabulary.special_tokens.values(), chance.randrange(vocabulary.size)])
    changes: list[Callable[[], list[Part]]] = [
        lambda: parts[:location],
        lambda: [*parts[:location], *parts[location + 1 :]],
        lambda: [*parts[:location], *parts[location : location + 1], *parts[location:]],
        lambda: [*parts[:location], chance.choice(_TEXTS), *parts[location:]],
        lambda: [*parts[:location], any_token, *parts[location:]],
        lambda: [*parts[:location], getattr(vocabulary.format, chance.choice(MARKERS)), *parts[location:]],
        lambda: [_spell(part, vocabulary) if chance.random() < 0.7 else part for part in parts],
        lambda: [_edit(part, chance) if number == location else part for number, part in enumerate(parts)],
        lambda: [_edit(part, chance) for part in parts],
        lambda: chance.sample(parts, len(parts)),
    ]
    return chance.choice(changes)()


def _spell(part: Part, vocabulary: Vocabulary) -> Part:
    text = vocabulary.special_text(part) if isinstance(part, int) else None
    return part if text is None else (text,)


def _edit(part: Part, chance: random.Random) -> Part:
    if not isinstance(part, str):
        return part
    edits: list[Callable[[str], str]] = [
        lambda text: text.removeprefix("functions."),
        lambda text: f"\n{text} ",
        lambda text: text.replace("}", ",}"),
        lambda text: text.rstrip("]}"),
        lambda text: text.replace('"', "'"),
        lambda text: text.replace("\\n", "\n").replace("true", "True"),
        lambda text: text[: chance.randrange(len(text) + 1)],
        lambda text: text[::-1],
        lambda text: "",
    ]
    return chance.choice(edits)(part)


def ids_of(parts: list[Part], vocabulary: Vocabulary) -> list[int]:
    ids: list[int] = []
    for part in parts:
        ids += [part] if isinstance(part, int) else vocabulary.encode(part if isinstance(part, str) else part[0])
    return [token_id for token_id in ids if token_id != -1]  # a vocabulary may have no <think>


def made_up(count: int, vocabulary: Vocabulary, seed: int = 0) -> list[list[int]]:
    """Return transcripts as ids: a third valid, the others spoilt once or more."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        parts = random_parts(chance, vocabulary)
        for _ in range(number % 3 and chance.randint(1, 3)):
            parts = spoil(parts, chance, vocabulary)
        found.append(ids_of(parts, vocabulary))
    return found


def call_ids(calls: tuple[ToolCall, ...]) -> list[str]:
    return [KIMI_K2.call_id(call.name, call.index) for call in calls]
