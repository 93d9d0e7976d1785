"""Completes fixed parts of XTML argument tags; maps a value or a type to the ``type`` attribute."""

import json
from collections.abc import Sequence

from constrained_k2.formats.kimi_k3 import VALUE_TYPES

BLOCK_TOKENS = 13
"""The tokens of a block besides its key and value: four markers, the name twice, attributes, quotes and type."""

TYPE_WORDS = ("string", "number", "null", "boolean", "array", "object")
"""The words of the type attribute, ordered by the length of each type's shortest value."""


def rest_of_piece(written: str, pieces: Sequence[str]) -> str:
    """The rest of the piece in which ``written`` (a prefix of all pieces joined) ends, or the next whole piece."""
    end = 0
    for piece in pieces:
        end += len(piece)
        if end > len(written):
            return piece[len(written) - end :]
    return ""


def kind_of_option(text: str) -> str:
    """The type word for a value, given as JSON."""
    return VALUE_TYPES[type(json.loads(text))]


def type_word(kind: str) -> str:
    """The type word for a JSON Schema type."""
    return "number" if kind == "integer" else kind
