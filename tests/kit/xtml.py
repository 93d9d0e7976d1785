"""Arguments as Kimi K3 writes them, encoded and decoded independently of the package."""

import json
import re
from typing import Any

from constrained_k2 import Vocabulary
from constrained_k2.formats.kimi_k2 import MARKER_TEXTS

OPEN, CLOSE, SEPARATOR = SPECIAL = ("<|open|>", "<|close|>", "<|sep|>")
TYPES = {str: "string", bool: "boolean", int: "number", float: "number", type(None): "null", list: "array",
         dict: "object"}  # fmt: skip
_HEAD = re.compile(r'argument key="([^"]*)" type="([a-z]+)"', re.DOTALL)


def with_xtml_markers(vocabulary: Vocabulary) -> Vocabulary:
    """Return a vocabulary that has K3's markers as well, in place of special tokens without a name."""
    special = {text: token for text, token in vocabulary.special_tokens.items() if "reserved" not in text}
    free = [token for token in vocabulary.unordinary_ids if token not in special.values()]
    tokens = {token: raw for token in range(vocabulary.size) if (raw := vocabulary.ordinary_bytes(token))}
    size = max(vocabulary.size, vocabulary.size - len(free) + 3)
    free += range(vocabulary.size, size)
    return Vocabulary(tokens, special | dict(zip(SPECIAL, free, strict=False)), size, vocabulary.encoder)


def of_bytes() -> Vocabulary:
    """Return a vocabulary of the 256 bytes and both formats' markers."""
    assert not set(SPECIAL) & set(MARKER_TEXTS.values())
    return with_xtml_markers(Vocabulary.of_bytes())


def block(key: str, kind: str, value: str) -> list[str]:
    """Return the pieces of one argument; special tokens and texts."""
    escaped = key.replace("&", "&amp;").replace('"', "&quot;")
    return [OPEN, f'argument key="{escaped}" type="{kind}"', SEPARATOR, value, CLOSE, "argument", SEPARATOR]


def pieces(arguments: dict[str, Any], separators: tuple[str, str] = (", ", ": ")) -> list[str]:
    """Return the pieces of an object's arguments, in its order."""
    written = []
    for key, value in arguments.items():
        is_text = isinstance(value, str)
        text = value if is_text else json.dumps(value, ensure_ascii=False, separators=separators)
        written += block(key, TYPES[type(value)], text)
    return written


def encode(vocabulary: Vocabulary, written: list[str]) -> list[int]:
    """Return the tokens of pieces: only where a piece is a marker does it become one."""
    ids = []
    for number, piece in enumerate(written):
        is_marker = number % 7 in {0, 2, 4, 6}
        ids += [vocabulary.special_tokens[piece]] if is_marker else vocabulary.encode(piece)
    return ids


def decode(vocabulary: Vocabulary, ids: list[int]) -> dict[str, Any]:
    """Return the arguments that tokens write; an AssertionError if they are not well formed or repeat a key."""
    marker = {vocabulary.special_tokens[text]: text for text in SPECIAL}
    parts: list[tuple[str, str]] = []  # marker, the text after it
    raw = b""
    for token in [*ids, None]:
        if token is None or token in marker:
            if parts:
                parts[-1] = (parts[-1][0], raw.decode())
            assert parts or not raw, raw
            raw = b""
            if token is not None:
                parts.append((marker[token], ""))
        else:
            assert vocabulary.is_ordinary(token), token
            raw += vocabulary.ordinary_bytes(token)
    assert len(parts) % 4 == 0, parts
    arguments: dict[str, Any] = {}
    for number in range(0, len(parts), 4):
        (begin, head), (middle, value), (close, tail), (end, rest) = parts[number : number + 4]
        assert (begin, middle, close, end) == (OPEN, SEPARATOR, CLOSE, SEPARATOR), parts
        assert (tail, rest) == ("argument", ""), parts
        found = _HEAD.fullmatch(head)
        assert found, head
        key = found[1].replace("&quot;", '"').replace("&amp;", "&")
        assert key not in arguments, f"{key} is written twice"
        arguments[key] = value if found[2] == "string" else json.loads(value)
        assert TYPES[type(arguments[key])] == found[2], (head, value)
        assert found[2] == "string" or value == value.strip(), value
    return arguments
