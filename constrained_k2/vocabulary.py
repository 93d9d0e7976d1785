"""The model's vocabulary as the masks see it: the raw bytes of every ordinary token, and which ids are special."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from constrained_k2.errors import FormatMismatch, InvalidRequest
from constrained_k2.format import MARKER_TEXTS, ToolCallFormat


class Encoder(Protocol):
    """True BPE encoding of text into ordinary tokens; special-token text is encoded as plain text."""

    def encode(self, text: str) -> list[int]:
        """Ids of the text's tokens."""


class _ByteEncoder:
    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class Vocabulary:
    """Token ids, their bytes, and the special tokens of one model.

    Args:
        tokens: Id -> bytes of every ordinary token. Ids below ``size`` that are neither here nor special are holes
            (padding of the embedding): never generated.
        special_tokens: Text -> id of every special token.
        size: The width of the logits.
        encoder: Encodes text into ordinary tokens.

    Raises:
        FormatMismatch: A marker of Kimi K2's format is not a single special token, or an id is outside ``size``.

    Attributes:
        format: Where the markers are in this vocabulary.
    """

    def __init__(
        self, tokens: Mapping[int, bytes], special_tokens: Mapping[str, int], size: int, encoder: Encoder
    ) -> None:
        self.size = size
        self.special_tokens = dict(special_tokens)
        self.format = ToolCallFormat.located_in(self.special_tokens)
        self.encoder = encoder
        last = max((*tokens, *self.special_tokens.values()))
        if last >= size:
            raise FormatMismatch(
                f"token id {last} lies outside the model's {size} logits",
                "tokenizer",
                "Use the tokenizer of the served checkpoint",
            )
        self._bytes: list[bytes] = [b""] * size
        for token_id, raw in tokens.items():
            self._bytes[token_id] = raw
        self._special = {token_id: text for text, token_id in self.special_tokens.items()}
        for token_id in self._special:
            if self._bytes[token_id]:
                raise FormatMismatch(f"token id {token_id} is both ordinary and special", "tokenizer")

    @classmethod
    def from_pretrained(
        cls, path_or_name: str | Path, *, size: int | None = None, revision: str | None = None, trust: bool = False
    ) -> "Vocabulary":
        """Read a checkpoint's tokenizer.

        A directory with ``tiktoken.model`` and ``tokenizer_config.json`` (Kimi's own form) or with
        ``tokenizer.json`` is read directly; anything else is what ``transformers.AutoTokenizer`` resolves it to.

        Args:
            path_or_name: A directory, or a model name.
            size: The width of the logits. By default ``vocab_size`` of the directory's ``config.json``, else what
                the tokenizer's files span.
            revision: Of a model name.
            trust: Whether ``transformers`` may run the checkpoint's own tokenizer code (``trust_remote_code``).

        Raises:
            FormatMismatch: The files are missing, broken, or of another model.
        """
        from constrained_k2 import tokenizer_files

        directory = Path(path_or_name)
        if directory.is_dir() and (read := tokenizer_files.reader_for(directory)):
            return read(directory, size)
        return cls.from_tokenizer(tokenizer_files.resolve(str(path_or_name), revision, trust=trust), size=size)

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, *, size: int | None = None) -> "Vocabulary":
        """Read the vocabulary behind a loaded ``transformers`` tokenizer, slow (Kimi's own) or fast.

        Args:
            tokenizer: The tokenizer object.
            size: The width of the logits, if it is more than the tokenizer's files span.

        Raises:
            FormatMismatch: The tokenizer is neither over a ``tiktoken.model`` nor a fast one, or is of another model.
        """
        from constrained_k2 import tokenizer_files

        return tokenizer_files.from_tokenizer(tokenizer, size)

    @classmethod
    def of_bytes(cls) -> "Vocabulary":
        """A vocabulary of the 256 bytes and the markers: whether a schema has a grammar can be seen over it at once."""
        special = {text: 256 + number for number, text in enumerate(MARKER_TEXTS.values())}
        return cls({byte: bytes((byte,)) for byte in range(256)}, special, 256 + len(special), _ByteEncoder())

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for: raw for an ordinary one, the text of a special one, none for a hole.

        Raises:
            InvalidRequest: The id is not in ``range(size)``.
        """
        if not 0 <= token_id < self.size:
            raise InvalidRequest(f"token id {token_id} is not in the vocabulary (0 to {self.size - 1})", "token id")
        special = self._special.get(token_id)
        return self._bytes[token_id] if special is None else special.encode()

    def is_ordinary(self, token_id: int) -> bool:
        """Whether the id is an ordinary token: in range, not special, not a hole."""
        return 0 <= token_id < self.size and bool(self._bytes[token_id])

    def ordinary_bytes(self, token_id: int) -> bytes:
        """The bytes of an ordinary token; empty for any other id."""
        return self._bytes[token_id] if 0 <= token_id < self.size else b""

    def special_text(self, token_id: int) -> str | None:
        """The text of a special token; None for any other id."""
        return self._special.get(token_id)

    def encode(self, text: str) -> list[int]:
        """Encode text into ordinary tokens, as the model's BPE does; special-token text stays text.

        Raises:
            InvalidRequest: The text holds a lone surrogate, which no tokenizer can encode.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"the text holds a lone surrogate at {error.start}", "text") from error
        return self.encoder.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens, special ones included; invalid UTF-8 becomes U+FFFD.

        Raises:
            InvalidRequest: An id is not in ``range(size)``.
        """
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    @cached_property
    def unordinary_ids(self) -> tuple[int, ...]:
        """Every id that is no ordinary token: the special ones and the holes, ascending."""
        return tuple(token_id for token_id, raw in enumerate(self._bytes) if not raw)

    @cached_property
    def sorted_tokens(self) -> tuple[Sequence[bytes], Sequence[int]]:
        """The ordinary tokens' bytes in ascending order, and their ids in the same order."""
        order = sorted((raw, token_id) for token_id, raw in enumerate(self._bytes) if raw)
        return [raw for raw, _ in order], [token_id for _, token_id in order]
