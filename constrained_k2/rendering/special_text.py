"""Text that would become a special token when a prompt is tokenized, and how it is kept text.

A chat template writes one text, and servers tokenize it with special tokens allowed: ``<|im_end|>`` inside a tool
result then ends the turn. The text is all that a template takes, so the marker is broken in the text itself: a WORD
JOINER goes behind its first character. What people read stays the same, no normalization form takes it out again (a
look-alike such as U+FF5C is folded back by NFKC), and the same bytes go through a live server as through
:func:`constrained_k2.render_prompt`, whose ids could have been made without the change, but would then be others than
the server's. The price: a model that copies such a text into a call copies the joiner with it.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from constrained_k2.format import MARKER_TEXTS

JOINER = "\u2060"
"""WORD JOINER: without width, and no line may break there."""

THINK_TAGS = frozenset({"<think>", "</think>"})
CALL_MARKERS = frozenset(text for text in MARKER_TEXTS.values() if text.startswith("<|tool_call"))
MEDIA_MARKERS = frozenset(f"<|media_{name}|>" for name in ("begin", "content", "end", "pad"))

KIMI_SPECIAL_TEXTS = frozenset(
    {
        *(THINK_TAGS | CALL_MARKERS | MEDIA_MARKERS),
        *(f"[{name}]" for name in ("BOS", "EOS", "EOT", "UNK", "PAD")),
        *(f"<|im_{name}|>" for name in ("end", "user", "assistant", "system", "middle")),
        *("<|start_header_id|>", "<|end_header_id|>"),
    }
)
"""The special tokens that have a name in Kimi K2's tokenizer_config.json; the others are ``<|reserved_token_ID|>``."""

# Every special token of Kimi's has one of these shapes; two matches of them never overlap.
_SHAPE = r"<\|[^|<>]{1,64}\|>|</?think>|\[[A-Z]{3}\]"
_RESERVED = re.compile(r"<\|reserved_token_[0-9]+\|>")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, init=False)
class SpecialTexts:
    """The texts that a tokenizer turns into special tokens.

    Args:
        texts: Those of the tokenizer; None for Kimi K2's.
    """

    texts: frozenset[str]
    _shape: re.Pattern[str]
    _any_reserved: bool

    def __init__(self, texts: Collection[str] | None = None) -> None:
        known = frozenset(KIMI_SPECIAL_TEXTS if texts is None else texts)
        odd = sorted((text for text in known if not re.fullmatch(_SHAPE, text)), key=len, reverse=True)
        object.__setattr__(self, "texts", known)
        object.__setattr__(self, "_shape", re.compile("|".join([*map(re.escape, odd), _SHAPE])))
        object.__setattr__(self, "_any_reserved", texts is None)

    def find(self, text: str) -> Iterator[re.Match[str]]:
        """The special tokens in a text, from the left."""
        return (match for match in self._shape.finditer(text) if self._is_special(match[0]))

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """The text in pieces: ``(piece, whether it is one special token)``; no piece is empty."""
        end = 0
        for match in self.find(text):
            if match.start() > end:
                yield text[end : match.start()], False
            yield match[0], True
            end = match.end()
        if end < len(text):
            yield text[end:], False

    def neutralize(self, text: str, *, keep: Collection[str] = ()) -> tuple[str, list[str]]:
        """Break every special token in a text, so that it is tokenized as text.

        Args:
            text: Any text.
            keep: Special tokens to leave.

        Returns:
            The text, and the special tokens that were broken, each once, in order of appearance.
        """
        found: dict[str, None] = {}

        def broken(match: re.Match[str]) -> str:
            marker = match[0]
            if not self._is_special(marker) or marker in keep:
                return marker
            found[marker] = None
            return marker[0] + JOINER + marker[1:]

        return self._shape.sub(broken, text), list(found)

    def _is_special(self, text: str) -> bool:
        return text in self.texts or (self._any_reserved and _RESERVED.fullmatch(text) is not None)


KIMI_SPECIALS = SpecialTexts()


def without_surrogates(text: str) -> str:
    """The text with each lone surrogate, which is no character and has no UTF-8, as U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
