"""The stand-in's vocabulary: byte pairs of its dialogs, cut so that a value is spelled the same wherever it stands."""

import base64
import itertools
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

from constrained_k2.evaluation.standin.catalogue import TOOLS
from constrained_k2.evaluation.standin.dialogs import CHATS, NO_TOOL, SECOND, answered_dialogs
from constrained_k2.evaluation.standin.sequences import chat_template
from constrained_k2.fixtures.tokenizer import SPECIAL_TOKENS, train_ranks
from constrained_k2.rendering.prompt import PromptRenderer
from constrained_k2.tokenizer_files import SPECIAL_COUNT, TiktokenEncoder
from constrained_k2.vocabulary import Vocabulary

_PIECE = re.compile(r"[A-Za-z]+|[0-9]+|[^A-Za-z0-9\s]+|\s+")
_MARKER = re.compile(r"<\|[a-z_]+\|>")
_SLOT = re.compile(r"\{[0-9]*\}")
_SPACED = re.compile(r" [a-z]+")


def train_vocabulary(texts: Iterable[str], prose: Iterable[str], size: int) -> dict[bytes, int]:
    """Train the ordinary tokens.

    A token never holds both letters and what stands before them: `Oslo` is the same tokens behind a space and behind a
    quote, so copying it is copying tokens. Only words of the requests' own phrasing have a token with their space.

    Args:
        texts: Prompts, special tokens spelled out.
        prose: The phrasing, without any value.
        size: How many tokens to train, before numbers of two digits and spaced words are added.

    Returns:
        Token bytes -> rank.
    """
    # The fixture's trainer cuts text by Kimi's own pattern, in which a digit parts what stands beside it.
    pieces = (piece for text in texts for piece in _PIECE.findall(_MARKER.sub(" ", text)))
    ranks = train_ranks("0".join(piece for piece in pieces if not piece.isspace() and not piece.isdigit()), size)
    numbers = (f"{tens}{ones}".encode() for tens, ones in itertools.product(range(10), repeat=2))
    spaced = sorted({word.encode() for text in prose for word in _SPACED.findall(text)})
    for token in (*numbers, *(word for word in spaced if word[1:] in ranks)):
        ranks[token] = len(ranks)
    return ranks


def phrasing() -> list[str]:
    """What requests, descriptions and answers say, without any value."""
    texts = [NO_TOOL, *SECOND, *(text for chat in CHATS for text in chat)]
    for tool in TOOLS:
        texts += [tool.description, *tool.asks, *(argument.phrase for argument in tool.optional)]
    return [_SLOT.sub("", text) for text in texts]


def dialog_texts(count: int, seed: int) -> list[str]:
    """The text of training dialogs, special tokens spelled out."""
    renderer = PromptRenderer.from_template(chat_template(), Vocabulary.of_bytes())
    dialogs = islice(answered_dialogs(seed, held_out=False), count)
    return [renderer.render({**dialog, "add_generation_prompt": False}, repair=False).text for dialog in dialogs]


def stand_in_vocabulary(ranks: Mapping[bytes, int]) -> Vocabulary:
    """The vocabulary of these ordinary tokens, with Kimi's special ones behind them."""
    base = len(ranks)
    special = {SPECIAL_TOKENS.get(n, f"<|reserved_token_{base + n}|>"): base + n for n in range(SPECIAL_COUNT)}
    tokens = {rank: token for token, rank in ranks.items()}
    return Vocabulary(tokens, special, base + SPECIAL_COUNT, TiktokenEncoder(ranks))


def write_ranks(path: Path, ranks: Mapping[bytes, int]) -> None:
    """Write a ``tiktoken.model``."""
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()))
