"""Events of the streaming parser: content, reasoning and calls. No event is ever revoked."""

from collections.abc import Mapping
from dataclasses import dataclass

RECOVERIES: Mapping[str, str] = {
    "bare_id": "the id is NAME:INDEX, without 'functions.'",
    "blanks": "spaces or newlines around the id or between markers",
    "in_reasoning": "the call opens inside the reasoning, and ends it",
    "no_call_end": "the call's end is missing behind complete arguments: the next call, the end of the section or "
    "that of the turn follows",
    "no_section": "the call is outside a tool-calls section: the section's marker is missing",
    "spelled_markers": "a marker is written as ordinary tokens; if the tools are known, only for a declared one; "
    "inside a JSON string it stays text",
    "text_in_section": "text between the markers of the section, outside calls, was dropped",
    "control_characters": "raw newlines, tabs and other control characters in a string of the arguments were escaped",
    "missing_braces": "braces or brackets missing at the end of the arguments were added",
    "no_arguments": "empty arguments were read as {}",
    "python_literals": "True, False and None in the arguments were rewritten as JSON",
    "single_quotes": "strings in single quotes, without quotes or backslashes inside, were put in double quotes",
    "trailing_comma": "a comma before a closing brace or bracket of the arguments was dropped",
    "attributes": "the attributes of an XTML tag are in another order, missing, unknown, repeated or badly escaped; a "
    "call without an index is numbered by its position",
    "no_response": "the response before the tools is missing, or not closed",
    "no_type": "an argument without a type was read as a string",
    "repeated_key": "an argument is written twice: both are in the JSON text, in which the last one counts",
    "value_type": "a value does not have the type that its tag names: JSON was taken as it is, other text as a string",
}
"""Deviation that the tolerant level accepts -> what was done. Arguments are changed only once their
call is complete, and only if that turns invalid JSON into a JSON object; valid JSON is never changed. Kimi K3's
arguments are recovered value by value."""


@dataclass(frozen=True, slots=True)
class TextEvent:
    """An event that carries text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEvent:
    """An event of one call."""

    position: int  # the call's number in the turn, from 0


class ContentDelta(TextEvent):
    """Text of the answer."""


class ReasoningDelta(TextEvent):
    """Text of the reasoning."""


class HeaderCut(TextEvent):
    """The completion ended inside a call's header; ``text`` is the part of it that was written."""


class CallDeclined(TextEvent):
    """A call was declined: the model closed the section inside the call; ``text``: the written part of its header.

    If its arguments were started, a :class:`CallCut` comes before, and the call repeats an earlier one.
    """


@dataclass(frozen=True, slots=True)
class MalformedDelta(TextEvent):
    """Text where the format allows none: between blocks or calls, or in a malformed call; ``reason`` says why."""

    reason: str


@dataclass(frozen=True, slots=True)
class CallStarted(CallEvent):
    """A call whose id is complete: the function's name and the index that the model wrote."""

    name: str
    index: int


class UndeclaredCall(CallEvent):
    """The call that has just started names no tool of the request. Sent only if the parser knows the tools."""


@dataclass(frozen=True, slots=True)
class RecoveryUsed(CallEvent):
    """A call that has started was accepted although it breaks the format; ``recovery`` is in :data:`RECOVERIES`."""

    recovery: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta(CallEvent):
    """Text of a call's arguments."""

    text: str


@dataclass(frozen=True, slots=True)
class ArgumentsRecovered(CallEvent):
    """Recoveries changed the arguments of a call that is about to finish; ``written``: the model's own text."""

    written: str


class CallFinished(CallEvent):
    """The call's end was written: it is complete."""


class CallCut(CallEvent):
    """A started call was cut off before its end marker, or a value has the wrong type. Do not execute the call."""


Event = TextEvent | CallEvent
