"""Parses token ids into content, reasoning and calls."""

import warnings
from typing import Any

from constrained_k2.parsing import events
from constrained_k2.parsing.parser import PARSING_LEVELS, Completion, CutCall, ToolCallParser, parse_completion

__all__ = ["PARSING_LEVELS", "Completion", "CutCall", "ToolCallParser", "parse_completion"]

_RENAMED = {"LENIENCIES": "RECOVERIES", "LeniencyUsed": "RecoveryUsed", "ArgumentsRepaired": "ArgumentsRecovered"}


def __getattr__(name: str) -> Any:
    """Find the events, which were here in version 0.1, with a warning; until version 0.3."""
    new = _RENAMED.get(name, name)
    if new.startswith("_") or not hasattr(events, new):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is now {events.__name__}.{new}", DeprecationWarning, stacklevel=2)
    return getattr(events, new)
