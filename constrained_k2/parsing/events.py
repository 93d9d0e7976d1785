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


@dataclass(frozen=True, slots=True)
class UndeclaredCall:
    """A call, started just before, names no tool of the request. Only where the parser knows the tools."""

    position: int


@dataclass(frozen=True, slots=True)
class LeniencyUsed:
    """A call was read though it does not keep to the format.

    Attributes:
        position: The call's; it has started by then, and may have finished.
        leniency: A name in :data:`constrained_k2.parsing.leniencies.LENIENCIES`.
    """

    position: int
    leniency: str


@dataclass(frozen=True, slots=True)
class ArgumentsRepaired:
    """The arguments handed over are not what the model wrote.

    Attributes:
        position: The call's, about to finish.
        written: What the model wrote, all of it.
    """

    position: int
    written: str


Event = (
    ContentDelta
    | ReasoningDelta
    | CallStarted
    | UndeclaredCall
    | LeniencyUsed
    | ArgumentsDelta
    | ArgumentsRepaired
    | CallFinished
    | CallCut
    | HeaderCut
    | MalformedDelta
)
