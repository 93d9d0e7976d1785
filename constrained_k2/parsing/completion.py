"""A whole completion, read by the streaming parser run to its end."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from constrained_k2.format import ToolCallFormat
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
from constrained_k2.parsing.stream import ParsingLevel, ToolCallParser
from constrained_k2.tools import Tool, ToolCall
from constrained_k2.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class CutCall:
    """A call that ended without ``<|tool_call_end|>``. It is no call: it must not be made.

    Attributes:
        header: What was written of ``functions.NAME:INDEX``, all of it or its beginning.
        arguments: What was written of the arguments.
    """

    header: str
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model wrote in one turn.

    Attributes:
        content: The answer's text.
        reasoning: The text of the reasoning.
        tool_calls: The whole calls, in order.
        cut_calls: Calls that were cut off.
        malformed: Stretches inside a tool-calls section that are no call, markers spelled out. At the tolerant level
            these are content, or reasoning.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    cut_calls: tuple[CutCall, ...] = ()
    malformed: tuple[str, ...] = ()

    @classmethod
    def from_events(cls, events: Iterable[Event]) -> "Completion":
        """Put the events of one completion together."""
        content: list[str] = []
        reasoning: list[str] = []
        malformed: list[list[str]] = []
        calls: list[_Call] = []
        whole: dict[int, None] = {}  # positions, in the order in which the calls ended
        cut: list[CutCall] = []
        last_malformed = False
        for event in events:
            match event:
                case ContentDelta(text):
                    content.append(text)
                case ReasoningDelta(text):
                    reasoning.append(text)
                case CallStarted():
                    calls.append(_Call(event))
                case UndeclaredCall() | LeniencyUsed() | ArgumentsDelta() | ArgumentsRepaired():
                    calls[event.position].take(event)
                case CallFinished(position):
                    whole[position] = None
                case CallCut(position):
                    cut.append(calls[position].cut())
                case HeaderCut(text):
                    cut.append(CutCall(text))
                case MalformedDelta(text):
                    if not last_malformed:
                        malformed.append([])
                    malformed[-1].append(text)
            last_malformed = isinstance(event, MalformedDelta)
        return cls(
            "".join(content),
            "".join(reasoning),
            tuple(calls[position].whole() for position in whole),
            tuple(cut),
            tuple(map("".join, malformed)),
        )


@dataclass(slots=True)
class _Call:
    """A call while its events are put together."""

    started: CallStarted
    arguments: list[str] = field(default_factory=list)
    leniencies: list[str] = field(default_factory=list)
    undeclared: bool = False
    written: str | None = None

    def take(self, event: UndeclaredCall | LeniencyUsed | ArgumentsDelta | ArgumentsRepaired) -> None:
        match event:
            case UndeclaredCall():
                self.undeclared = True
            case LeniencyUsed(_, leniency):
                self.leniencies.append(leniency)
            case ArgumentsDelta(_, text):
                self.arguments.append(text)
            case ArgumentsRepaired(_, written):
                self.written = written

    def whole(self) -> ToolCall:
        name, index, arguments = self.started.name, self.started.index, "".join(self.arguments)
        return ToolCall(name, index, arguments, tuple(self.leniencies), self.undeclared, self.written)

    def cut(self) -> CutCall:
        return CutCall(ToolCallFormat.call_id(self.started.name, self.started.index), "".join(self.arguments))


def parse_completion(
    token_ids: Iterable[int],
    vocabulary: Vocabulary,
    *,
    in_reasoning: bool = False,
    level: ParsingLevel = "strict",
    tools: Iterable[Tool] | None = None,
) -> Completion:
    """Read a whole completion.

    Args:
        token_ids: What the model generated, the stop included or not.
        vocabulary: The model's vocabulary.
        in_reasoning: Whether the prompt ended in ``<think>``.
        level: How exactly the format has to be kept; see :class:`constrained_k2.ToolCallParser`.
        tools: The tools that may be called; calls of others are marked so. None if they are not known.

    Raises:
        MalformedCompletion: An id is not in the vocabulary.
    """
    parser = ToolCallParser(vocabulary, in_reasoning=in_reasoning, level=level, tools=tools)
    return Completion.from_events([*parser.feed(token_ids), *parser.finish()])
