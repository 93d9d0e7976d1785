"""Reads the tokenizer files that checkpoints ship: token bytes, special tokens and an encoder."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from constrained_k2.errors import FormatMismatch
from constrained_k2.formats.kimi_k2 import SPECIAL_COUNT, reserved_text


class Encoder(Protocol):
    """BPE encoding of text into ordinary tokens; the text of special tokens is encoded as plain text."""

    def encode(self, text: str) -> list[int]:
        """Token ids of the text."""


class TokenizerData(NamedTuple):
    """The arguments of :class:`constrained_k2.Vocabulary`."""

    tokens: Mapping[int, bytes]
    special_tokens: Mapping[str, int]
    size: int
    encoder: Encoder


# Kimi's split of text before BPE (source: the checkpoint's tokenization code; MIT).
_MARKLESS, _UPPER, _LOWER = r"[^\r\n\p{L}\p{N}]?", r"\p{Lu}\p{Lt}", r"\p{Ll}"
_ANY_CASE, _NOT_HAN, _SUFFIX = r"\p{Lm}\p{Lo}\p{M}", r"&&[^\p{Han}]", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_WORDS = [
    f"{_MARKLESS}[{_UPPER}{_ANY_CASE}{_NOT_HAN}]{some}[{_LOWER}{_ANY_CASE}{_NOT_HAN}]{more}{_SUFFIX}"
    for some, more in (("*", "+"), ("+", "*"))
]
SPLIT_PATTERN = "|".join(
    [r"[\p{Han}]+", *_WORDS, r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]
)

# Kimi's tokenizer cuts longer runs of (non-)blanks here, in characters, since BPE over one run is quadratic.
_RUN_LENGTH = 25_000
_LONG_RUN = re.compile(rf"\S{{1,{_RUN_LENGTH}}}|\s{{1,{_RUN_LENGTH}}}")


class TiktokenEncoder:
    """BPE by tiktoken, from ``ranks``: bytes -> id (= merge rank) of every ordinary token."""

    def __init__(self, ranks: Mapping[bytes, int]) -> None:
        import tiktoken

        self.ranks = dict(ranks)
        self._encoding = tiktoken.Encoding("kimi", pat_str=SPLIT_PATTERN, mergeable_ranks=self.ranks, special_tokens={})

    def encode(self, text: str) -> list[int]:
        """Token ids of the text."""
        if len(text) <= _RUN_LENGTH:
            return self._encoding.encode_ordinary(text)
        return [token for piece in _pieces(text) for token in self._encoding.encode_ordinary(piece)]


def _pieces(text: str) -> Iterator[str]:
    """The text, cut only inside runs longer than the limit."""
    cuts = [match.end() for match in _LONG_RUN.finditer(text) if match.end() - match.start() == _RUN_LENGTH]
    return (text[start:end] for start, end in pairwise((0, *cuts, len(text))))


class TokenizersEncoder:
    """BPE by the ``tokenizers`` library, from a decoded ``tokenizer.json`` without its special tokens."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        from tokenizers import Tokenizer

        bare = {**document, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
        self._tokenizer = Tokenizer.from_str(json.dumps(bare))

    def encode(self, text: str) -> list[int]:
        """Token ids of the text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def read_directory(directory: Path, size: int | None) -> TokenizerData | None:
    """Read a directory's tokenizer; None if it has neither supported file."""
    readers = {"tiktoken.model": _read_tiktoken, "tokenizer.json": _read_tokenizer_json}
    try:
        return next((read(directory, size) for name, read in readers.items() if (directory / name).is_file()), None)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatMismatch(f"the tokenizer's files have an unexpected form: {error!r}", str(directory)) from error


def _read_tiktoken(directory: Path, size: int | None) -> TokenizerData:
    model = directory / "tiktoken.model"
    try:
        lines = (line.split() for line in model.read_bytes().splitlines() if line)
        ranks = {base64.b64decode(raw, validate=True): int(rank) for raw, rank in lines}
    except (OSError, ValueError) as error:
        raise FormatMismatch(f"not a tiktoken vocabulary: {error}", str(model)) from error
    if not ranks:
        raise FormatMismatch("the file contains no tokens", str(model))
    base = len(ranks)
    named = _load_json(directory / "tokenizer_config.json").get("added_tokens_decoder", {})
    names = {int(token_id): entry["content"] for token_id, entry in named.items()}
    special = {names.get(token_id, reserved_text(token_id)): token_id for token_id in range(base, base + SPECIAL_COUNT)}
    width = size or _configured_size(directory) or base + SPECIAL_COUNT
    return TokenizerData({rank: raw for raw, rank in ranks.items()}, special, width, TiktokenEncoder(ranks))


def _read_tokenizer_json(directory: Path, size: int | None) -> TokenizerData:
    document = _load_json(directory / "tokenizer.json")
    return _from_document(document, str(directory / "tokenizer.json"), size or _configured_size(directory))


def resolve(name: str, revision: str | None, *, trust: bool) -> Any:
    """Load a tokenizer by name or directory with ``transformers``."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        problem = "contains neither tiktoken.model nor tokenizer.json, and transformers is not installed"
        raise FormatMismatch(problem, name, "Give a tokenizer directory, or install transformers") from error
    try:
        return AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=trust)
    except Exception as error:  # transformers raises whatever the hub, the files or the checkpoint's code raise
        problem = f"transformers finds no tokenizer there: {str(error).rstrip('.')}"
        raise FormatMismatch(problem, name, "Give a Kimi tokenizer's directory, or a model's name") from error


def from_tokenizer(tokenizer: Any, size: int | None) -> TokenizerData:
    """Read a loaded ``transformers`` tokenizer; see :meth:`constrained_k2.Vocabulary.from_tokenizer`."""
    vocab_file = getattr(tokenizer, "vocab_file", None)
    if vocab_file and Path(vocab_file).name == "tiktoken.model":
        return _read_tiktoken(Path(vocab_file).parent, size)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return _from_document(json.loads(backend.to_str()), type(tokenizer).__name__, size)
    problem = "the tokenizer is neither Kimi's (over tiktoken.model) nor a fast one"
    raise FormatMismatch(problem, type(tokenizer).__name__, "Use the tokenizer of a Kimi checkpoint")


def _from_document(document: Mapping[str, Any], location: str, size: int | None) -> TokenizerData:
    model = document.get("model") or {}
    if model.get("type") != "BPE" or "ByteLevel" not in json.dumps(document.get("decoder")):
        raise FormatMismatch("is not a byte-level BPE, so the bytes of its tokens are unknown", location)
    alphabet = _byte_alphabet()
    special = {entry["content"]: int(entry["id"]) for entry in document.get("added_tokens", [])}
    taken = set(special.values())
    try:
        tokens = {
            int(token_id): bytes(alphabet[character] for character in text)
            for text, token_id in model["vocab"].items()
            if token_id not in taken
        }
    except KeyError as error:
        raise FormatMismatch(f"a token contains {error}, which stands for no byte", location) from error
    width = size or 1 + max((*tokens, *taken), default=0)
    return TokenizerData(tokens, special, width, TokenizersEncoder(document))


def _byte_alphabet() -> dict[str, int]:
    """Printable character -> byte, as byte-level BPE files spell bytes (GPT-2's convention)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


def _configured_size(directory: Path) -> int | None:
    """``vocab_size`` of the checkpoint's ``config.json``, or of its ``text_config`` (multimodal checkpoints)."""
    path = directory / "config.json"
    if not path.is_file():
        return None
    config = _load_json(path)
    size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    return int(size) if size else None


def _load_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise FormatMismatch(f"cannot be read as JSON: {error}", str(path)) from error
    if not isinstance(document, dict):
        raise FormatMismatch("is not a JSON object", str(path))
    return document
