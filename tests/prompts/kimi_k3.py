"""Vocabularies and prompts of Kimi K3 that the tests of its prompts share."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from constrained_k2 import Vocabulary
from constrained_k2.formats.kimi_k3 import SPECIAL_TOKENS
from constrained_k2.vocabulary.tokenizer_files import read_directory
from constrained_k2.vocabulary.vocabulary import _ByteEncoder
from tests.kit.data import data

BASE_SIZE = 163_584
COPIED: list[dict[str, Any]] = json.loads((Path(__file__).parent / "kimi_k3.json").read_text("utf-8"))["prompts"]
"""Some of the goldens, with texts alone, for machines without the others."""

BYTES = Vocabulary(
    {byte: bytes((byte,)) for byte in range(256)},
    {text: 256 + offset for offset, text in SPECIAL_TOKENS.items()},
    512,
    _ByteEncoder(),
)
"""The 256 bytes and Kimi K3's special tokens."""


def real_tokens() -> Vocabulary:
    """The real vocabulary, with the special tokens that other projects' fixtures name."""
    found = read_directory(data("kimi_k2/tokenizer"), None)
    assert found is not None
    names = json.loads(data("kimi_k3/special_tokens.json").read_text("utf-8"))
    return Vocabulary(found.tokens, {text: int(at) for at, text in names.items()}, found.size, found.encoder)


def spelled(ids: Iterable[int]) -> str:
    """The text of byte tokens, with special tokens between double brackets."""
    raw = b""
    for token_id in ids:
        text = BYTES.special_text(token_id)
        raw += BYTES.token_bytes(token_id) if text is None else f"⟦{text}⟧".encode()
    return raw.decode()


def body_of(golden: dict[str, Any]) -> dict[str, Any]:
    """The request body of a golden, where its options say what the body's fields say."""
    request = golden["request"]
    options = dict(request["options"])
    variables = {name: options.pop(name) for name in ("thinking", "thinking_effort") if name in options}
    body = {"messages": request["messages"], "tools": request["tools"], **options}
    return body | ({"chat_template_kwargs": variables} if variables else {})
