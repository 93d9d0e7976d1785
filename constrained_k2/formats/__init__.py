"""Tool-call wire formats, one a file. Every marker is spelled here and nowhere else in the package."""

from collections.abc import Mapping

from constrained_k2.errors import FormatMismatch
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2

FORMATS: tuple[WireFormat, ...] = (KIMI_K2,)
"""All formats; a vocabulary speaks the first one whose markers it has."""


def format_of(special_tokens: Mapping[str, int]) -> WireFormat:
    """Return the format that a vocabulary speaks, with the ids of its markers there.

    Args:
        special_tokens: Text -> id of every special token of the vocabulary.

    Raises:
        FormatMismatch: The vocabulary lacks a marker of each format; the message names those of the first one.
    """
    mismatches = []
    for known in FORMATS:
        try:
            return known.located_in(special_tokens)
        except FormatMismatch as error:
            mismatches.append(error)
    raise mismatches[0]
