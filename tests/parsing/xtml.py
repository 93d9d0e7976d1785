"""Turns of Kimi K3 for tests of its parser: written by a renderer of their own, random, and randomly spoilt."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

from constrained_k2 import Vocabulary
from tests.kit.xtml import TYPES

OPEN, CLOSE, SEP, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
Piece = tuple[str, bool]  # text, and whether it is one special token

HOSTILE = [
    OPEN, CLOSE, SEP, END, f"{CLOSE}argument{SEP}", f"{CLOSE}call{SEP}{CLOSE}tools{SEP}",
    f"{CLOSE}response{SEP}{OPEN}tools{SEP}", f'{OPEN}call tool="get_weather" index="1"{SEP}',
    f'{OPEN}argument key="city" type="string"{SEP}', "<|tool_call_begin|>", "</think>", '"}', "&quot;", "&amp;",
    "\\u0041\n\t\x00\x7f", "北京 🌦️ café", " ", "", "null", "1",
]  # fmt: skip
NAMES = ["get_weather", "search", "a.b-c", "名", 'a&b"c', "call"]


@dataclass
class Turn:
    """The content of a turn."""

    response: str = ""
    reasoning: str | None = None
    calls: list[tuple[str, dict[str, Any] | str]] = field(default_factory=list)  # a text is one JSON block


def tag(begin: str, name: str, **attributes: str) -> list[Piece]:
    """A tag in the pieces that are encoded alone."""
    pieces: list[Piece] = [(begin, True), (name, False)]
    for key, value in attributes.items():
        escaped = value.replace("&", "&amp;").replace('"', "&quot;")
        pieces += [(f" {key}", False), ('="', False), (escaped, False), ('"', False)]
    return [*pieces, (SEP, True)]


def written(turn: Turn) -> list[Piece]:
    """A turn as the model writes it, without the opening of the message and of the first block."""
    pieces: list[Piece] = []
    if turn.reasoning is not None:
        pieces += [(turn.reasoning, False), *tag(CLOSE, "think"), *tag(OPEN, "response")]
    pieces += [(turn.response, False), *tag(CLOSE, "response")]
    if turn.calls:
        pieces += tag(OPEN, "tools")
        for number, (name, arguments) in enumerate(turn.calls, 1):
            pieces += tag(OPEN, "call", tool=name, index=str(number))
            if isinstance(arguments, str):
                pieces += [*tag(OPEN, "json", type="object"), (arguments, False), *tag(CLOSE, "json")]
            else:
                for key, value in arguments.items():
                    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                    pieces += tag(OPEN, "argument", key=key, type=TYPES[type(value)])
                    pieces += [(text, False), *tag(CLOSE, "argument")]
            pieces += tag(CLOSE, "call")
        pieces += tag(CLOSE, "tools")
    return [*pieces, *tag(CLOSE, "message"), (END, True)]


def encoded(pieces: list[Piece], vocabulary: Vocabulary) -> list[int]:
    """The ids of pieces, each encoded alone."""
    ids: list[int] = []
    for text, is_special in pieces:
        ids += [vocabulary.special_tokens[text]] if is_special else vocabulary.encode(text)
    return ids


def random_text(chance: random.Random) -> str:
    return "".join(chance.choice([*HOSTILE, "x", "Let me see. "]) for _ in range(chance.randrange(4)))


def random_value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(8 if depth < 3 else 6)
    if kind < 2:
        return random_text(chance)
    if kind < 6:
        return chance.choice([0, -7, 10**30, 0.5, 1e22, True, False, None])
    if kind == 6:
        return [random_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {random_text(chance): random_value(chance, depth + 1) for _ in range(chance.randrange(4))}


def random_turn(chance: random.Random) -> Turn:
    """A valid turn, whose texts spell markers."""
    turn = Turn(random_text(chance), chance.choice([None, random_text(chance)]))
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        arguments: dict[str, Any] | str = {
            random_text(chance): random_value(chance) for _ in range(chance.randrange(4))
        }
        turn.calls.append(
            (chance.choice(NAMES), chance.choice(["not JSON", "[1"]) if chance.random() < 0.1 else arguments)
        )
    return turn


def spoil(pieces: list[Piece], chance: random.Random) -> list[Piece]:
    """Spoil a turn in one way."""
    at = chance.randrange(len(pieces) + 1)
    to = min(len(pieces), at + chance.randrange(1, 6))
    extra: list[Piece] = [
        (chance.choice([OPEN, CLOSE, SEP, END, "[EOS]"]), True),
        (random_text(chance), False),
        (chance.choice(["call", "argument", " key", '="', "think", "Z"]), False),
    ]
    return chance.choice(
        [
            pieces[:at],
            pieces[:at] + pieces[to:],
            pieces[:at] + pieces[at:to] * 2 + pieces[to:],
            [*pieces[:at], chance.choice(extra), *pieces[at:]],
            pieces[:at] + chance.sample(pieces[at:to], len(pieces[at:to])) + pieces[to:],
            [(text, special and chance.random() < 0.9) for text, special in pieces],
            pieces[:at] + [(text[::-1], False) if not special else (text, True) for text, special in pieces[at:to]] + pieces[to:],
        ]
    )  # fmt: skip
