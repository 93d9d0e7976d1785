"""Transcripts of either format for the parsers' tests: from texts, by hand, random, and randomly spoilt."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from constrained_k2 import KIMI_K2, ToolCall, Vocabulary
from tests.kit.k3_turns import CLOSE, END, OPEN, SEP
from tests.kit.turns import ids_of, is_k3
from tests.kit.xtml import TYPES

Piece = tuple[str, bool]  # text, and whether it is one special token

K2_TEXTS = ["", "Let me see. ", "北京 🌦️ café", "\n", " ", "a < b <| c <|tool", "<|tool_call_", "{}", "Note: 3", "é" * 9]
K2_NAMES = ["get_weather", "search", "a.b-c", "Read", "名"]
_VALUES: list[Any] = [
    "x", "北京 🌦️", 'q"\\', "\n\t", "<|tool_call_end|>", "it's", 1, -2.5e9, True, None, [], {}, [1, [2]],
]  # fmt: skip
_KEYS = ["city", "days", "名", "a b", "'"]
HOSTILE = [
    OPEN, CLOSE, SEP, END, f"{CLOSE}argument{SEP}", f"{CLOSE}call{SEP}{CLOSE}tools{SEP}",
    f"{CLOSE}response{SEP}{OPEN}tools{SEP}", f'{OPEN}call tool="get_weather" index="1"{SEP}',
    f'{OPEN}argument key="city" type="string"{SEP}', "<|tool_call_begin|>", "</think>", '"}', "&quot;", "&amp;",
    "\\u0041\n\t\x00\x7f", "北京 🌦️ café", " ", "", "null", "1",
]  # fmt: skip
K3_NAMES = ["get_weather", "search", "a.b-c", "名", 'a&b"c', "call"]


def ids_of_text(text: str, vocabulary: Vocabulary) -> list[int]:
    """Encode marker texts as tokens; ``<~|…|>`` is a marker spelled out of ordinary tokens."""
    return ids_of(vocabulary, text)


def table(wire_format: str = "kimi_k2", level: str = "tolerant") -> list[dict[str, Any]]:
    """Transcripts of a format made by hand, with what they are read as at a level."""
    path = Path(__file__).parent / "tables" / f"{wire_format}_{level}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def encoded(pieces: list[Piece], vocabulary: Vocabulary) -> list[int]:
    """The ids of pieces, each encoded alone."""
    ids: list[int] = []
    for text, is_special in pieces:
        ids += [vocabulary.special_tokens[text]] if is_special else vocabulary.encode(text)
    return ids


def random_call(chance: random.Random, index: int) -> ToolCall:
    arguments = {key: chance.choice(_VALUES) for key in chance.sample(_KEYS, chance.randrange(4))}
    written = json.dumps(arguments, ensure_ascii=chance.random() < 0.3, indent=chance.choice([None, None, 2]))
    return ToolCall(chance.choice(K2_NAMES), index, written)


def random_parts(chance: random.Random) -> list[Piece]:
    """A valid turn of Kimi K2."""
    marker = {name: (text, True) for name, text in KIMI_K2.marker_texts.items()}
    pieces: list[Piece] = []
    if chance.random() < 0.4:
        pieces += [marker["think_begin"], (chance.choice(K2_TEXTS), False), marker["think_end"]]
    pieces.append((chance.choice(K2_TEXTS), False))
    calls = [random_call(chance, index) for index in range(chance.choice([0, 1, 1, 2, 3]))]
    for call in calls:
        pieces += [marker["section_begin"]] if call is calls[0] else []
        pieces += [marker["call_begin"], (call.id, False), marker["argument_begin"], (call.arguments, False)]
        pieces += [marker["call_end"]] + [marker["section_end"]] * (call is calls[-1])
    return [*pieces, marker["turn_end"]]


@dataclass
class Turn:
    """The content of a turn of Kimi K3."""

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
    """A turn as Kimi K3 writes it, without the opening of the message and of the first block."""
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
    """A valid turn of Kimi K3, whose texts spell markers."""
    turn = Turn(random_text(chance), chance.choice([None, random_text(chance)]))
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        arguments: dict[str, Any] | str = {
            random_text(chance): random_value(chance) for _ in range(chance.randrange(4))
        }
        block = chance.choice(["not JSON", "[1"])
        turn.calls.append((chance.choice(K3_NAMES), block if chance.random() < 0.1 else arguments))
    return turn


def spoil(pieces: list[Piece], chance: random.Random, vocabulary: Vocabulary) -> list[Piece]:
    """Spoil a turn in one way."""
    at = chance.randrange(len(pieces) + 1)
    to = min(len(pieces), at + chance.randrange(1, 6))
    texts = [
        random_text(chance),
        *(["call", "argument", " key", '="', "think", "Z"] if is_k3(vocabulary) else K2_TEXTS),
    ]
    markers = [*vocabulary.format.marker_texts.values(), "[EOS]"]
    extra = chance.choice([(chance.choice(markers), True), (chance.choice(texts), False)])
    spelled = chance.choice([0.3, 0.9])
    changes: list[Callable[[], list[Piece]]] = [
        lambda: pieces[:at],
        lambda: pieces[:at] + pieces[to:],
        lambda: [*pieces[:at], *pieces[at + 1 :]],
        lambda: pieces[:at] + pieces[at:to] * 2 + pieces[to:],
        lambda: [*pieces[:at], extra, *pieces[at:]],
        lambda: pieces[:at] + chance.sample(pieces[at:to], len(pieces[at:to])) + pieces[to:],
        lambda: chance.sample(pieces, len(pieces)),
        lambda: [(text, special and chance.random() < spelled) for text, special in pieces],
        lambda: pieces[:at] + [_edit(piece, chance) for piece in pieces[at:to]] + pieces[to:],
        lambda: [_edit(piece, chance) for piece in pieces],
    ]
    return chance.choice(changes)()


def _edit(piece: Piece, chance: random.Random) -> Piece:
    text, is_special = piece
    if is_special:
        return piece
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
    return chance.choice(edits)(text), False


def made_up(count: int, vocabulary: Vocabulary, seed: int = 0) -> list[tuple[list[Piece], bool]]:
    """Transcripts, a third of them valid, the others spoilt; and whether the prompt opened the reasoning."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        turn, opened = random_turn(chance), number % 5 == 0
        pieces = written(turn) if is_k3(vocabulary) else random_parts(chance)
        for _ in range(number % 3 and chance.randint(1, 3)):
            pieces = spoil(pieces, chance, vocabulary)
        if is_k3(vocabulary):
            opened = (turn.reasoning is not None) ^ (number % 10 == 0)
        found.append((pieces, opened))
    return found
