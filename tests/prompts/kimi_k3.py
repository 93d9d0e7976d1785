"""Tokens and prompts of Kimi K3 that the tests of its prompts share."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from constrained_k2.formats.kimi_k3 import SPECIAL_TOKENS
from constrained_k2.vocabulary.tokenizer_files import Encoder, read_directory
from tests.data import data

BASE_SIZE = 163_584
COPIED: list[dict[str, Any]] = json.loads((Path(__file__).parent / "kimi_k3.json").read_text("utf-8"))["prompts"]
"""Some of the goldens, with texts alone, for machines without the others."""


class Bytes:
    """A vocabulary of the 256 bytes and Kimi K3's special tokens."""

    special_tokens: Mapping[str, int] = {text: 256 + offset for offset, text in SPECIAL_TOKENS.items()}

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def spell(self, ids: list[int]) -> str:
        """The text of ids, with special tokens between double brackets."""
        names = {token_id: f"⟦{text}⟧".encode() for text, token_id in self.special_tokens.items()}
        return b"".join(names.get(token_id) or bytes((token_id,)) for token_id in ids).decode()


class RealTokens:
    """The real vocabulary, with the special tokens that other projects' fixtures name."""

    def __init__(self) -> None:
        found = read_directory(data("kimi_k2/tokenizer"), None)
        assert found is not None
        self._encoder: Encoder = found.encoder
        names = json.loads(data("kimi_k3/special_tokens.json").read_text("utf-8"))
        self.special_tokens: Mapping[str, int] = {text: int(token_id) for token_id, text in names.items()}

    def encode(self, text: str) -> list[int]:
        return self._encoder.encode(text)


def body_of(golden: dict[str, Any]) -> dict[str, Any]:
    """The request body of a golden, where its options say what the body's fields say."""
    request = golden["request"]
    options = dict(request["options"])
    variables = {name: options.pop(name) for name in ("thinking", "thinking_effort") if name in options}
    body = {"messages": request["messages"], "tools": request["tools"], **options}
    return body | ({"chat_template_kwargs": variables} if variables else {})
