"""The small model's vocabulary: byte pairs split so that a value has the same tokens in every context."""

import itertools
import re
from collections.abc import Iterable
from itertools import islice

from constrained_k2.testing.tokenizer import WireFormatName, train_ranks
from constrained_k2.vocabulary.vocabulary import Vocabulary
from scripts.small_model.catalogue import TOOLS
from scripts.small_model.dialogs import CHATS, NO_TOOL, SECOND, answered_dialogs
from scripts.small_model.sequences import DialogRenderer
from scripts.small_model.shipped import SMALL_MODELS

_PIECE = re.compile(r"[A-Za-z]+|[0-9]+|[^A-Za-z0-9\s]+|\s+")
_MARKER = re.compile(r"<\|[a-z_]+\|>")
_SLOT = re.compile(r"\{[0-9]*\}")
_SPACED = re.compile(r" [a-z]+")


def train_vocabulary(texts: Iterable[str], prose: Iterable[str], size: int) -> dict[bytes, int]:
    """Train the ordinary tokens: bytes -> rank; two-digit numbers and words with spaces are added to ``size`` tokens.

    A token never combines letters with the character before them: `Oslo` has the same tokens after a space and after a
    quote, so copying it means copying tokens. Only words of the requests' phrasing, ``prose``, have a token with their
    space.
    """
    # train_ranks splits text by Kimi's pattern, in which a digit separates its neighbours.
    pieces = (piece for text in texts for piece in _PIECE.findall(_MARKER.sub(" ", text)))
    ranks = train_ranks("0".join(piece for piece in pieces if not piece.isspace() and not piece.isdigit()), size)
    numbers = (f"{tens}{ones}".encode() for tens, ones in itertools.product(range(10), repeat=2))
    spaced = sorted({word.encode() for text in prose for word in _SPACED.findall(text)})
    for token in (*numbers, *(word for word in spaced if word[1:] in ranks)):
        ranks[token] = len(ranks)
    return ranks


def phrasing(wire_format: WireFormatName = "kimi_k2") -> list[str]:
    """Return the phrasing of requests, descriptions, answers and tags, without values."""
    texts = [NO_TOOL, *SECOND, *(text for chat in CHATS for text in chat), *SMALL_MODELS[wire_format].phrasing]
    for tool in TOOLS:
        texts += [tool.description, *tool.asks, *(argument.phrase for argument in tool.optional)]
    return [_SLOT.sub("", text) for text in texts]


def dialog_texts(count: int, seed: int, wire_format: WireFormatName = "kimi_k2") -> list[str]:
    """Return the text of training dialogs, special tokens spelled out."""
    renderer = DialogRenderer(Vocabulary.of_bytes(SMALL_MODELS[wire_format].wire_format))
    return [renderer.render(dialog).text for dialog in islice(answered_dialogs(seed, held_out=False), count)]
