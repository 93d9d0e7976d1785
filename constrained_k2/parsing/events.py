"""What a stream of token ids turns into. Every event is final: nothing is taken back by a later one."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call whose header is whole.

    Attributes:
        position: Which call of the turn, from 0.
        name: The function's name.
        index: The index the model wrote.
    """

    position: int
    name: str
    index: int


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """Text of a call's arguments."""

    position: int
    text: str


@dataclass(frozen=True, slots=True)
class CallFinished:
    """``<|tool_call_end|>``: the call is whole."""

    position: int


@dataclass(frozen=True, slots=True)
class CallCut:
    """A started call ended without ``<|tool_call_end|>``: it must not be made."""

    position: int


@dataclass(frozen=True, slots=True)
class HeaderCut:
    """The completion ended inside a call's header.

    Attributes:
        text: What was written of ``functions.NAME:INDEX``.
    """

    text: str


@dataclass(frozen=True, slots=True)
class MalformedDelta:
    """Text inside a tool-calls section that belongs to no call, markers spelled out. It is nobody's content.

    Attributes:
        text: What the model wrote.
        reason: Why it is no call.
    """

    text: str
    reason: str


Event = (
    ContentDelta | ReasoningDelta | CallStarted | ArgumentsDelta | CallFinished | CallCut | HeaderCut | MalformedDelta
)
