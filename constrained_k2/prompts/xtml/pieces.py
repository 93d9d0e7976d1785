"""Collects a prompt as pieces, each a special token or a text that is tokenized alone.

Kimi K3's own encoder tokenizes piece by piece: a tag's name, an attribute's key, ``="``, its value, ``"``, and the
content of a message. Joined texts have other ids for some values, and only pieces keep a client's text apart from the
special tokens that it may spell.
"""

from collections.abc import Iterable
from typing import NamedTuple

from constrained_k2.errors import FormatMismatch
from constrained_k2.formats.kimi_k3 import (
    CLOSE,
    MEDIA_BEGIN,
    MEDIA_CONTENT,
    MEDIA_END,
    MEDIA_PAD,
    MESSAGE_END,
    OPEN,
    SEPARATOR,
    escape,
)
from constrained_k2.prompts.special_text import SpecialTexts
from constrained_k2.vocabulary.vocabulary import Vocabulary


class Piece(NamedTuple):
    """A special token, or a text of ordinary tokens."""

    text: str
    is_special: bool


class Pieces:
    """A prompt, or a part of one, that is being written."""

    def __init__(self) -> None:
        self.items: list[Piece] = []

    def __str__(self) -> str:
        return "".join(piece.text for piece in self.items)

    def special(self, text: str) -> None:
        """Append a special token."""
        self.items.append(Piece(text, is_special=True))

    def text(self, text: str) -> None:
        """Append a text as a piece of its own."""
        if text:
            self.items.append(Piece(text, is_special=False))

    def extend(self, pieces: "Pieces") -> None:
        """Append the pieces of another text."""
        self.items += pieces.items

    def open(self, tag: str, attributes: Iterable[tuple[str, str]] = ()) -> None:
        """Append the opening of a tag."""
        self.special(OPEN)
        self.text(tag)
        for key, value in attributes:
            self.text(f" {key}")
            self.text('="')
            self.text(escape(value))
            self.text('"')
        self.special(SEPARATOR)

    def close(self, tag: str) -> None:
        """Append the end of a tag."""
        self.special(CLOSE)
        self.text(tag)
        self.special(SEPARATOR)

    def end_message(self) -> None:
        """Append the token that follows the end of every message."""
        self.special(MESSAGE_END)

    def image(self, width: int, height: int) -> None:
        """Append an image of a size in pixels, before it is resized."""
        self.special(MEDIA_BEGIN)
        self.text(f"image {width}x{height}")
        for marker in (MEDIA_CONTENT, MEDIA_PAD, MEDIA_END):
            self.special(marker)

    def encode(self, vocabulary: Vocabulary) -> list[int]:
        """The token ids of the pieces.

        Raises:
            FormatMismatch: A special token is not one of the vocabulary's.
            InvalidRequest: A text contains a lone surrogate.
        """
        ids: list[int] = []
        special = vocabulary.special_tokens
        try:
            for text, is_special in self.items:
                ids += (special[text],) if is_special else vocabulary.encode(text)
        except KeyError as error:
            problem = f"the vocabulary has no single special token for {error.args[0]}"
            raise FormatMismatch(problem, "tokenizer", "Use the tokenizer of a Kimi K3 checkpoint") from error
        return ids

    def plain_spans(self, specials: SpecialTexts) -> list[tuple[int, int]]:
        """The spans of the joined text in which ordinary tokens spell a special token, as ``(start, end)``."""
        spans: list[tuple[int, int]] = []
        start = 0
        for text, is_special in self.items:
            if not is_special:
                spans += ((start + match.start(), start + match.end()) for match in specials.find(text))
            start += len(text)
        return spans
