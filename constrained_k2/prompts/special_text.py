"""Keeps a client's text from becoming special tokens when a prompt is tokenized.

Servers tokenize the text of a chat template with special tokens enabled: ``<|im_end|>`` inside a tool result then
ends the turn. So a WORD JOINER is inserted after the marker's first character. People see no difference, and Unicode
normalization does not remove it (NFKC folds look-alikes such as U+FF5C back). Encoding the marker as ordinary tokens is
possible only outside a server: the prompt's ids would differ from the server's. The cost: a model that copies such a
text into a call copies the joiner too.
"""

import re
from collections.abc import Collection, Iterator

from constrained_k2.formats import kimi_k2
from constrained_k2.vocabulary.vocabulary import Vocabulary

JOINER = "\u2060"  # WORD JOINER, a character of zero width
THINK_TAGS = frozenset({kimi_k2.THINK_BEGIN, kimi_k2.THINK_END})
CALL_MARKERS = frozenset(kimi_k2.MARKER_TEXTS[name] for name in kimi_k2.CALL_MARKERS)
MEDIA_MARKERS = frozenset(kimi_k2.MEDIA_MARKERS)
KIMI_SPECIAL_TEXTS = kimi_k2.KIMI_K2.special_texts
"""The special tokens that have a name in Kimi K2's tokenizer_config.json; the others are ``<|reserved_token_ID|>``."""

_SHAPE = re.compile(kimi_k2.SPECIAL_SHAPE)
_RESERVED = re.compile(re.escape(kimi_k2.reserved_text("ID")).replace("ID", "[0-9]+"))


class SpecialTexts:
    """The texts that a tokenizer turns into special tokens: ``texts``, or Kimi K2's."""

    def __init__(self, texts: Collection[str] | None = None) -> None:
        self._texts = frozenset(KIMI_SPECIAL_TEXTS if texts is None else texts)
        odd = sorted((text for text in self._texts if not _SHAPE.fullmatch(text)), key=len, reverse=True)
        self._shape = re.compile("|".join([*map(re.escape, odd), _SHAPE.pattern]))
        self._any_reserved = texts is None

    def find(self, text: str) -> Iterator[re.Match[str]]:
        """Find the special tokens in a text, from the left."""
        return (match for match in self._shape.finditer(text) if self._is_special(match[0]))

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """Split a text into non-empty pieces: ``(piece, whether it is a special token)``."""
        end = 0
        for match in self.find(text):
            if match.start() > end:
                yield text[end : match.start()], False
            yield match[0], True
            end = match.end()
        if end < len(text):
            yield text[end:], False

    def encode(self, text: str, vocabulary: Vocabulary) -> list[int]:
        """Tokenize a text as servers do: every spelling of a special token becomes that token."""
        ids: list[int] = []
        for piece, special in self.split(text):
            ids += [vocabulary.special_tokens[piece]] if special else vocabulary.encode(piece)
        return ids

    def neutralize(self, text: str, *, keep: Collection[str] = ()) -> tuple[str, list[str]]:
        """Break a text's special tokens, except those in ``keep``; return the text, and the broken ones, each once."""
        found: dict[str, None] = {}

        def broken(match: re.Match[str]) -> str:
            marker = match[0]
            if not self._is_special(marker) or marker in keep:
                return marker
            found[marker] = None
            return marker[0] + JOINER + marker[1:]

        return self._shape.sub(broken, text), list(found)

    def _is_special(self, text: str) -> bool:
        return text in self._texts or (self._any_reserved and _RESERVED.fullmatch(text) is not None)


KIMI_SPECIALS = SpecialTexts()
