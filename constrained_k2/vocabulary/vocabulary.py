"""The model's vocabulary: the raw bytes of every ordinary token, and the special tokens."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from constrained_k2.errors import FormatMismatch, InvalidRequest
from constrained_k2.formats import format_of
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.vocabulary import tokenizer_files
from constrained_k2.vocabulary.spelling import SpelledTokens
from constrained_k2.vocabulary.tokenizer_files import Encoder


class _ByteEncoder:
    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class Vocabulary:
    """Token ids, their bytes, and the special tokens of one model.

    Args:
        tokens: Id -> bytes of every ordinary token. Ids that are neither ordinary nor special are never generated.
        special_tokens: Text -> id of every special token.
        size: The width of the logits.
        encoder: Encodes text into ordinary tokens.

    Raises:
        FormatMismatch: No known format has all its markers here, or an id is outside ``size``.
    """

    def __init__(
        self, tokens: Mapping[int, bytes], special_tokens: Mapping[str, int], size: int, encoder: Encoder
    ) -> None:
        self.size = size
        self.special_tokens = dict(special_tokens)
        self.format = format_of(self.special_tokens)
        self.encoder = encoder
        last = max((*tokens, *self.special_tokens.values()))
        if last >= size:
            problem = f"token id {last} is outside the model's {size} logits"
            raise FormatMismatch(problem, "tokenizer", "Use the tokenizer of the served checkpoint")
        self._bytes: list[bytes] = [b""] * size
        for token_id, raw in tokens.items():
            self._bytes[token_id] = raw
        self._special = {token_id: text for text, token_id in self.special_tokens.items()}
        if both := tokens.keys() & self._special:
            raise FormatMismatch(f"token id {min(both)} is both ordinary and special", "tokenizer")

    @classmethod
    def from_pretrained(
        cls, path_or_name: str | Path, *, size: int | None = None, revision: str | None = None, trust: bool = False
    ) -> "Vocabulary":
        """Read a checkpoint's tokenizer.

        A directory with ``tiktoken.model`` and ``tokenizer_config.json`` (Kimi's own form) or with
        ``tokenizer.json`` is read directly; anything else is loaded by ``transformers.AutoTokenizer``.

        Args:
            path_or_name: A directory, or a model name.
            size: The width of the logits; by default ``vocab_size`` of ``config.json``, else one more than the
                tokenizer's last id.
            revision: The revision of a model name.
            trust: Let ``transformers`` run the checkpoint's own tokenizer code (``trust_remote_code``).
        """
        directory = Path(path_or_name)
        if directory.is_dir() and (data := tokenizer_files.read_directory(directory, size)):
            return cls(*data)
        return cls.from_tokenizer(tokenizer_files.resolve(str(path_or_name), revision, trust=trust), size=size)

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, *, size: int | None = None) -> "Vocabulary":
        """Read a loaded ``transformers`` tokenizer, slow (Kimi's own) or fast; ``size`` is the width of the logits.

        Raises:
            FormatMismatch: The tokenizer is neither a fast one nor based on ``tiktoken.model``, or of another model.
        """
        return cls(*tokenizer_files.from_tokenizer(tokenizer, size))

    @classmethod
    def of_bytes(cls, wire_format: WireFormat = KIMI_K2) -> "Vocabulary":
        """A vocabulary of the 256 bytes and a format's markers: the fastest way to see if a schema has a grammar."""
        texts = dict.fromkeys(wire_format.marker_texts.values())
        special = {text: 256 + number for number, text in enumerate(texts)}
        return cls({byte: bytes((byte,)) for byte in range(256)}, special, 256 + len(special), _ByteEncoder())

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token: raw if it is ordinary, its text if it is special, empty for an id without a token.

        Raises:
            InvalidRequest: The id is not in ``range(size)``.
        """
        if not 0 <= token_id < self.size:
            raise InvalidRequest(f"token id {token_id} is not in the vocabulary (0 to {self.size - 1})", "token id")
        special = self._special.get(token_id)
        return self._bytes[token_id] if special is None else special.encode()

    def is_ordinary(self, token_id: int) -> bool:
        """True for an ordinary token: in range, not special, and not an id without a token."""
        return 0 <= token_id < self.size and bool(self._bytes[token_id])

    def ordinary_bytes(self, token_id: int) -> bytes:
        """The bytes of an ordinary token; empty for any other id."""
        return self._bytes[token_id] if 0 <= token_id < self.size else b""

    def special_text(self, token_id: int) -> str | None:
        """The text of a special token; None for any other id."""
        return self._special.get(token_id)

    def opens_reasoning(self, prompt_ids: Sequence[int]) -> bool:
        """True if a prompt ends with the format's opening of reasoning, so that the model continues with reasoning."""
        opening = self.format.located(self.format.reasoning_opening)
        if opening is None:
            return False
        longest = sum(1 if isinstance(piece, int) else len(piece) for piece in opening)
        return self._end_in(list(prompt_ids[-longest:]), opening)

    def _end_in(self, ids: list[int], pieces: tuple[int | bytes, ...]) -> bool:
        """True if tokens end with a sequence of markers and literal text, in any tokenization of the text."""
        if not pieces or not ids:
            return not pieces
        *others, piece = pieces
        if isinstance(piece, int):
            return ids[-1] == piece and self._end_in(ids[:-1], tuple(others))
        raw = self.ordinary_bytes(ids[-1])
        if not raw or not piece.endswith(raw):
            return False
        left = piece[: -len(raw)]
        return self._end_in(ids[:-1], (*others, left) if left else tuple(others))

    def encode(self, text: str) -> list[int]:
        """Encode text into ordinary tokens, as the model's BPE does; the text of special tokens stays text.

        Raises:
            InvalidRequest: The text contains a lone surrogate, which no tokenizer can encode.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"the text contains a lone surrogate at {error.start}", "text") from error
        return self.encoder.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens, special ones included; invalid UTF-8 becomes U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    @cached_property
    def unordinary_ids(self) -> tuple[int, ...]:
        """The ids of special tokens, and those without a token, ascending."""
        return tuple(token_id for token_id, raw in enumerate(self._bytes) if not raw)

    @cached_property
    def sorted_tokens(self) -> tuple[Sequence[bytes], Sequence[int]]:
        """The bytes of the ordinary tokens, ascending, and their ids in the same order."""
        order = sorted((raw, token_id) for token_id, raw in enumerate(self._bytes) if raw)
        return [raw for raw, _ in order], [token_id for _, token_id in order]

    @cached_property
    def spelled_tokens(self) -> SpelledTokens:
        """The ordinary tokens by their normalized text, which all spellings of a name share."""
        return SpelledTokens.of((token_id, raw) for token_id, raw in enumerate(self._bytes) if raw)

    def find(self, raw: bytes) -> int | None:
        """The ordinary token with exactly these bytes; None if there is none."""
        known, ids = self.sorted_tokens
        at = bisect_left(known, raw)
        return ids[at] if at < len(known) and known[at] == raw else None
