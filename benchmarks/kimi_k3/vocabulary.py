"""Kimi K3's vocabulary: Kimi K2's ordinary tokens under K3's special tokens."""

from pathlib import Path

from constrained_k2.formats.kimi_k2 import BASE_SIZE, SPECIAL_COUNT, reserved_text
from constrained_k2.formats.kimi_k3 import SPECIAL_TOKENS
from constrained_k2.vocabulary.vocabulary import Vocabulary


def both_vocabularies(tokenizer: Path) -> tuple[Vocabulary, Vocabulary]:
    """Return Kimi K2's vocabulary from its tokenizer's directory, and Kimi K3's with the same ordinary tokens."""
    k2 = Vocabulary.from_pretrained(tokenizer)
    return k2, with_k3_tokens(k2)


def with_k3_tokens(k2: Vocabulary) -> Vocabulary:
    """Return a vocabulary with K3's special tokens in place of those of a K2 vocabulary."""
    tokens = {token: raw for token in range(k2.size) if (raw := k2.ordinary_bytes(token))}
    base = min(BASE_SIZE, max(tokens) + 1)
    special = {SPECIAL_TOKENS.get(at, reserved_text(base + at)): base + at for at in range(SPECIAL_COUNT)}
    return Vocabulary(tokens, special, k2.size, k2.encoder)
