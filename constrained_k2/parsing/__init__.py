"""From token ids to content, reasoning and calls."""

from constrained_k2.parsing.completion import Completion, CutCall, parse_completion
from constrained_k2.parsing.events import (
    ArgumentsDelta,
    CallCut,
    CallFinished,
    CallStarted,
    ContentDelta,
    Event,
    HeaderCut,
    MalformedDelta,
    ReasoningDelta,
)
from constrained_k2.parsing.stream import ToolCallParser

__all__ = [
    "ArgumentsDelta",
    "CallCut",
    "CallFinished",
    "CallStarted",
    "Completion",
    "ContentDelta",
    "CutCall",
    "Event",
    "HeaderCut",
    "MalformedDelta",
    "ReasoningDelta",
    "ToolCallParser",
    "parse_completion",
]
