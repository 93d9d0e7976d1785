"""From token ids to content, reasoning and calls."""

from constrained_k2.parsing.completion import Completion, CutCall, parse_completion
from constrained_k2.parsing.events import (
    ArgumentsDelta,
    ArgumentsRepaired,
    CallCut,
    CallFinished,
    CallStarted,
    ContentDelta,
    Event,
    HeaderCut,
    LeniencyUsed,
    MalformedDelta,
    ReasoningDelta,
    UndeclaredCall,
)
from constrained_k2.parsing.leniencies import LENIENCIES
from constrained_k2.parsing.stream import PARSING_LEVELS, ParsingLevel, ToolCallParser

__all__ = [
    "LENIENCIES",
    "PARSING_LEVELS",
    "ArgumentsDelta",
    "ArgumentsRepaired",
    "CallCut",
    "CallFinished",
    "CallStarted",
    "Completion",
    "ContentDelta",
    "CutCall",
    "Event",
    "HeaderCut",
    "LeniencyUsed",
    "MalformedDelta",
    "ParsingLevel",
    "ReasoningDelta",
    "ToolCallParser",
    "UndeclaredCall",
    "parse_completion",
]
