"""A whole completion, read by the streaming parser run to its end."""

from collections.abc import Iterable
from dataclasses import dataclass

from constrained_k2.format import ToolCallFormat
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
from constrained_k2.tools import ToolCall
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
        malformed: Stretches inside a tool-calls section that are no call, markers spelled out.
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
        started: list[CallStarted] = []
        arguments: list[list[str]] = []
        whole: list[ToolCall] = []
        cut: list[CutCall] = []
        last_malformed = False
        for event in events:
            match event:
                case ContentDelta(text):
                    content.append(text)
                case ReasoningDelta(text):
                    reasoning.append(text)
                case CallStarted():
                    started.append(event)
                    arguments.append([])
                case ArgumentsDelta(position, text):
                    arguments[position].append(text)
                case CallFinished(position):
                    call = started[position]
                    whole.append(ToolCall(call.name, call.index, "".join(arguments[position])))
                case CallCut(position):
                    call = started[position]
                    cut.append(CutCall(ToolCallFormat.call_id(call.name, call.index), "".join(arguments[position])))
                case HeaderCut(text):
                    cut.append(CutCall(text))
                case MalformedDelta(text):
                    if last_malformed:
                        malformed[-1].append(text)
                    else:
                        malformed.append([text])
            last_malformed = isinstance(event, MalformedDelta)
        return cls("".join(content), "".join(reasoning), tuple(whole), tuple(cut), tuple(map("".join, malformed)))


def parse_completion(token_ids: Iterable[int], vocabulary: Vocabulary, *, in_reasoning: bool = False) -> Completion:
    """Read a whole completion.

    Args:
        token_ids: What the model generated, the stop included or not.
        vocabulary: The model's vocabulary.
        in_reasoning: Whether the prompt ended in ``<think>``.

    Raises:
        MalformedCompletion: An id is not in the vocabulary.
    """
    parser = ToolCallParser(vocabulary, in_reasoning=in_reasoning)
    return Completion.from_events([*parser.feed(token_ids), *parser.finish()])
