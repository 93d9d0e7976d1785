"""Writes a tokenizer directory with a given vocabulary, or with a small one trained on the spot."""

import base64
import json
import shutil
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import regex  # type: ignore[import-untyped]

from constrained_k2.formats import kimi_k2, kimi_k3
from constrained_k2.formats.kimi_k2 import BOS, EOS, PAD, UNK, reserved_text
from constrained_k2.testing.tokenization_kimi import NUM_SPECIAL_TOKENS, SPLIT_PATTERN, read_ranks

WireFormatName: TypeAlias = Literal["kimi_k2", "kimi_k3"]


class _Surface(NamedTuple):
    """The parts of a tokenizer directory that depend on the wire format."""

    special_tokens: Mapping[int, str]  # offset from the last ordinary token -> text
    plain_offsets: frozenset[int]  # flagged `special: false`: `skip_special_tokens` leaves them in the text
    class_name: str
    files: tuple[str, ...]  # the first one holds the class


_SURFACES: Mapping[WireFormatName, _Surface] = {
    "kimi_k2": _Surface(
        kimi_k2.SPECIAL_TOKENS,
        frozenset({11, 12, 13, 14, 15, 22, 23}),
        "TikTokenTokenizer",
        ("tokenization_kimi.py", "chat_template.jinja"),
    ),
    "kimi_k3": _Surface(
        kimi_k3.SPECIAL_TOKENS, frozenset(), "KimiK3Tokenizer", ("tokenization_kimi_k3.py", "tokenization_kimi.py")
    ),
}

_SMALL = 1024  # ordinary tokens of the vocabulary that is trained on the spot
_NAMED_ROLES = {"bos_token": BOS, "eos_token": EOS, "unk_token": UNK, "pad_token": PAD}


def training_text() -> str:
    """Return the text that the small vocabulary is trained on: prose, and tool calls in four layouts of JSON."""
    return (files("constrained_k2.testing") / "training_text.txt").read_text("utf-8").removesuffix("\n")


def train_ranks(text: str, size: int) -> dict[bytes, int]:
    """Train byte-pair merges up to ``size`` tokens, including the 256 single bytes, which have the first ranks.

    Candidates are counted by their bytes rather than by their pair, as tiktoken looks merges up: pairs that make the
    same bytes are one token.
    """
    ranks = {bytes([value]): value for value in range(256)}
    pieces = Counter(regex.findall(SPLIT_PATTERN, text, flags=regex.VERSION1))
    words = [([bytes([value]) for value in piece.encode()], count) for piece, count in pieces.items()]
    while len(ranks) < size:
        counts: Counter[bytes] = Counter()
        for parts, count in words:
            for left, right in pairwise(parts):
                counts[left + right] += count
        if not (candidates := counts.keys() - ranks.keys()):
            raise ValueError(f"the training text gives {len(ranks)} tokens, not {size}")
        best = max(candidates, key=lambda token: (counts[token], token))  # the bytes break ties
        ranks[best] = len(ranks)
        words = [(parts if len(parts) == 1 else _merge(parts, best), count) for parts, count in words]
    return ranks


def _merge(parts: list[bytes], token: bytes) -> list[bytes]:
    """Join each neighbouring pair that makes `token`, from the left."""
    merged = parts[:1]
    for part in parts[1:]:
        if merged[-1] + part == token:
            merged[-1] = token
        else:
            merged.append(part)
    return merged


def write_tokenizer(
    out: Path,
    source: Path | None = None,
    *,
    ranks: Mapping[bytes, int] | None = None,
    wire_format: WireFormatName = "kimi_k2",
) -> list[str]:
    """Write the tokenizer's files and, for Kimi K2, the chat template; return the text of every id.

    The vocabulary is that of the directory `source`, else `ranks`, else a small one that is trained on the spot. Kimi
    K3 has Kimi K2's ordinary tokens, so its `source` may be a directory of Kimi K2's. In the texts, bytes that are not
    UTF-8 appear as U+FFFD.
    """
    config: dict[str, Any]
    surface = _SURFACES[wire_format]
    if source is None:
        ranks = train_ranks(training_text(), _SMALL) if ranks is None else ranks
        config = _tokenizer_config(len(ranks), surface)
        lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
        (out / "tiktoken.model").write_bytes(b"".join(lines))
    else:
        ranks = read_ranks(source / "tiktoken.model")
        config = json.loads((source / "tokenizer_config.json").read_bytes())
        if wire_format == "kimi_k3":
            config = _tokenizer_config(len(ranks), surface)
        shutil.copyfile(source / "tiktoken.model", out / "tiktoken.model")
    module = surface.files[0].removesuffix(".py")
    config["tokenizer_class"] = surface.class_name
    config["auto_map"] = {"AutoTokenizer": [f"{module}.{surface.class_name}", None]}
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")
    for name in surface.files:
        (out / name).write_bytes((files("constrained_k2.testing") / name).read_bytes())

    texts = [token.decode(errors="replace") for token in sorted(ranks, key=ranks.__getitem__)]
    named = {int(token_id): entry["content"] for token_id, entry in config["added_tokens_decoder"].items()}
    special_ids = range(len(ranks), len(ranks) + NUM_SPECIAL_TOKENS)
    return [*texts, *(named.get(token_id) or reserved_text(token_id) for token_id in special_ids)]


def _tokenizer_config(base_size: int, surface: _Surface) -> dict[str, Any]:
    """Return the real `tokenizer_config.json` with its ids after `base_size` ordinary tokens."""
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {
        "added_tokens_decoder": {
            str(base_size + offset): {"content": content, **flags, "special": offset not in surface.plain_offsets}
            for offset, content in surface.special_tokens.items()
        },
        "additional_special_tokens": [
            content
            for offset, content in surface.special_tokens.items()
            if offset not in surface.plain_offsets and content not in _NAMED_ROLES.values()
        ],
        "clean_up_tokenization_spaces": False,
        "extra_special_tokens": {},
        "model_max_length": int(1e30),
        **_NAMED_ROLES,
    }
