"""Tool-call wire formats of Kimi K2 and Kimi K3, one per file, with the texts of all their markers."""

from collections.abc import Mapping

from constrained_k2.errors import FormatMismatch
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.formats.kimi_k3 import KIMI_K3

FORMATS: tuple[WireFormat, ...] = (KIMI_K2, KIMI_K3)
"""All formats; a vocabulary uses the first one whose markers it has."""


def format_of(special_tokens: Mapping[str, int]) -> WireFormat:
    """Return the format that a vocabulary uses, with the ids of its markers there.

    Args:
        special_tokens: Text -> id of every special token of the vocabulary.

    Raises:
        FormatMismatch: The vocabulary lacks a marker of each format; the message names them.
    """
    lacking = []
    for known in FORMATS:
        absent = known.missing_in(special_tokens)
        if not absent:
            return known.located_in(special_tokens)
        lacking.append(f"for {', '.join(absent)} ({known.name})")
    problem = f"the vocabulary has no single special token {', nor '.join(lacking)}"
    families = " or ".join(known.name for known in FORMATS)
    raise FormatMismatch(problem, "tokenizer", f"Use the tokenizer of a {families} checkpoint")
