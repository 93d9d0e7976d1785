"""Lexes XTML tokens into text, tags and other special tokens; a tag is buffered until its separator."""

import codecs
from dataclasses import dataclass

from constrained_k2.formats.kimi_k3 import ARGUMENT, CALL, JSON, MESSAGE, RESPONSE, THINK, TOOLS
from constrained_k2.vocabulary.vocabulary import Vocabulary

_MAX_BODY = 65_536  # bytes of a tag between its special tokens; attributes hold names and keys
_MAX_START = 32  # max bytes of a tag's name and the blanks before it
_NAMES = (THINK, RESPONSE, TOOLS, CALL, ARGUMENT, JSON, MESSAGE)
BLANKS = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Tag:
    """A special token that opens or closes, the tag's name and attributes, and the separator."""

    closes: bool
    body: str  # the name and the attributes
    text: str  # the whole tag

    @property
    def is_name(self) -> bool:
        """True if the body is a known name or the prefix of a known name."""
        body = self.body.strip(BLANKS)
        return any(name.startswith(body) for name in _NAMES)


@dataclass(frozen=True, slots=True)
class Special:
    """A special token outside tags."""

    text: str


Part = str | Tag | Special


class TagReader:
    """Splits the tokens of a completion; ``pending`` is the text of a tag that has no separator yet."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._open, self._close = vocabulary.format.call_begin, vocabulary.format.call_end
        self._separator = vocabulary.format.argument_begin
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begin = ""  # the text of the pending tag's special token
        self._closes = False
        self._body: bytearray | None = None  # the pending tag's name and attributes

    def read(self, token_id: int) -> list[Part]:
        """Read one token, and return the parts that are complete."""
        if raw := self._vocabulary.ordinary_bytes(token_id):
            if self._body is None:
                text = self._decoder.decode(raw)
                return [text] if text else []
            self._body += raw
            return [] if self._may_be_tag() else self._release()
        text = self._vocabulary.special_text(token_id) or ""
        if not text:
            return []  # an id without a token
        if token_id == self._separator and self._body is not None:
            body = self._body.decode(errors="replace")
            self._body = None
            return [Tag(self._closes, body, f"{self._begin}{body}{text}")]
        parts = self.flush()
        if token_id in (self._open, self._close):
            self._begin, self._closes, self._body = text, token_id == self._close, bytearray()
        else:
            parts.append(Special(text))
        return parts

    def flush(self) -> list[Part]:
        """Return a tag without its separator as text, and an incomplete UTF-8 character as U+FFFD."""
        parts = self._release()
        if text := self._decoder.decode(b"", final=True):
            parts.append(text)
        return parts

    def take_pending(self) -> Tag | None:
        """Return and drop the pending tag, without its separator."""
        if self._body is None:
            return None
        body = self._body.decode(errors="replace")
        self._body = None
        return Tag(self._closes, body, self._begin + body)

    def _may_be_tag(self) -> bool:
        """True if the pending tag can still become a known tag."""
        body = self._body or bytearray()
        if len(body) > _MAX_BODY:
            return False
        start = body[:_MAX_START].decode(errors="replace").lstrip(BLANKS)
        for name in _NAMES:
            if name.startswith(start):
                return len(body) <= _MAX_START
            if start.startswith(name) and start[len(name)] in BLANKS:
                return True
        return False

    def _release(self) -> list[Part]:
        """Give up the pending tag: its special token, and its body as text."""
        if self._body is None:
            return []
        text = self._decoder.decode(self._body)
        self._body = None
        return [Special(self._begin), text] if text else [Special(self._begin)]
