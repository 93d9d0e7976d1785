"""Kimi K2's tokenizer class: a tiktoken vocabulary with transformers' slow tokenizer interface.

This file is copied into model directories and loaded from there (`auto_map` and `trust_remote_code`), so it must not
import this package. It behaves like the class in production checkpoints: no fast tokenizer, 256 special ids after the
base vocabulary, markers flagged `special: false`, ids without a name as `<|reserved_token_N|>`, special tokens
recognised inside any text, and tool declarations with sorted keys.
"""

import base64
from pathlib import Path
from typing import Any, ClassVar

import tiktoken
from transformers import AddedToken, PreTrainedTokenizer

NUM_SPECIAL_TOKENS = 256

# Alternatives are tried in order. `&&[^\p{Han}]` keeps Han out of words: a run of Han is a piece of its own.
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
SPLIT_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


def read_ranks(vocab_file: str | Path) -> dict[bytes, int]:
    """Read a `tiktoken.model` file: each line is base64 of a token's bytes, a space, and its rank (= its id).

    `tiktoken.load` caches by the file's *path*, which goes stale when a model is rebuilt in the same directory.
    """
    lines = Path(vocab_file).read_bytes().splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}


def printable_bytes() -> list[str]:
    """Return GPT-2's character for each byte: itself if printable, else the next free one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def _sort_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sort_keys(value[key]) for key in sorted(value)}
    return [_sort_keys(item) for item in value] if isinstance(value, list) else value


class TikTokenTokenizer(PreTrainedTokenizer):  # type: ignore[misc]
    """Byte-level BPE by tiktoken, followed by 256 special tokens.

    Token *strings* (`convert_ids_to_tokens`, `get_vocab`) are GPT-2's: one printable character a byte, so a token that
    ends inside a UTF-8 sequence has a string of its own, and joining strings joins bytes. The arguments are
    `tokenizer_config.json`'s.
    """

    vocab_files_names: ClassVar = {"vocab_file": "tiktoken.model"}
    model_input_names: ClassVar = ["input_ids", "attention_mask"]

    def __init__(self, vocab_file: str, added_tokens_decoder: dict[int, AddedToken], **kwargs: Any) -> None:
        self.vocab_file = vocab_file
        ranks = read_ranks(vocab_file)
        named = {token_id: token.content for token_id, token in added_tokens_decoder.items()}
        special_ids = range(len(ranks), len(ranks) + NUM_SPECIAL_TOKENS)
        special = {named.get(token_id, f"<|reserved_token_{token_id}|>"): token_id for token_id in special_ids}
        self.model = tiktoken.Encoding("kimi", pat_str=SPLIT_PATTERN, mergeable_ranks=ranks, special_tokens=special)
        characters = printable_bytes()
        self.byte_of = {character: byte for byte, character in enumerate(characters)}
        self.decoder = {rank: "".join(characters[byte] for byte in token) for token, rank in ranks.items()}
        self.decoder.update((token_id, text) for text, token_id in special.items())
        self.encoder = {text: token_id for token_id, text in self.decoder.items()}
        # Last, because the parent class uses the vocabulary in its constructor.
        super().__init__(added_tokens_decoder=added_tokens_decoder, **kwargs)

    @property
    def vocab_size(self) -> int:
        """Number of ids, including the special ones."""
        return len(self.decoder)

    def get_vocab(self) -> dict[str, int]:
        """Return token string -> id in a new dict, including the special tokens."""
        return dict(self.encoder)

    def _tokenize(self, text: str, **_kwargs: Any) -> list[str]:
        # The parent class splits off named special tokens only; the reserved ones are found here.
        return [self.decoder[token_id] for token_id in self.model.encode(text, allowed_special="all")]

    def _convert_token_to_id(self, token: str) -> int:
        return self.encoder.get(token, self.encoder[self.unk_token])

    def _convert_id_to_token(self, index: int) -> str:
        return self.decoder.get(index, "")

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Join token strings into text; bytes that are not UTF-8 become U+FFFD."""
        return bytes(self.byte_of[character] for token in tokens for character in token).decode(errors="replace")

    def apply_chat_template(self, conversation: Any, tools: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Render a dialog like transformers, with the keys of `tools` sorted at every depth in a copy."""
        return super().apply_chat_template(conversation, _sort_keys(tools), *args, **kwargs)
