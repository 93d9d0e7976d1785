"""Streaming parser: turns token ids into content and tool-call events; also parses whole turns."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, get_args

from constrained_k2.errors import InvalidRequest, MalformedCompletion, excerpt
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.parsing import events as ev
from constrained_k2.parsing.reader import Reader, StrictReader
from constrained_k2.parsing.tolerant import TolerantReader
from constrained_k2.parsing.xtml import StrictXtmlReader, TolerantXtmlReader
from constrained_k2.request.spec import Tool, ToolCall
from constrained_k2.vocabulary.vocabulary import Vocabulary

ParsingLevel = Literal["strict", "tolerant"]
"""``strict``: exactly the format, for constrained output. ``tolerant``: also the deviations in
:data:`constrained_k2.parsing.events.RECOVERIES`, each recorded on its call."""

PARSING_LEVELS: tuple[ParsingLevel, ...] = get_args(ParsingLevel)


class ToolCallParser:
    """Parses one completion by token id.

    Chunks of ids may end anywhere. At the strict level only a special token is a marker: a marker spelled in ordinary
    tokens is text, and text in a section outside calls is reported as :class:`MalformedDelta`. At the tolerant level,
    text that is not a call stays content or reasoning. At both levels, special tokens in text outside calls stay text.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        in_reasoning: bool = False,  # the prompt opened the reasoning
        level: ParsingLevel = "strict",
        tools: Iterable[Tool] | None = None,  # if known, calls of other functions are reported
        calls: bool = True,  # if False, calls that the model writes are dropped
    ) -> None:
        if level not in PARSING_LEVELS:
            remedy = f"Use {' or '.join(map(repr, PARSING_LEVELS))}"
            raise InvalidRequest(f"unknown level {excerpt(level)}", "level", remedy)
        self._size = vocabulary.size
        self._events: list[ev.Event] = []
        declared = None if tools is None else frozenset(tool.name for tool in tools)
        self._reader: Reader = _reader_of(vocabulary, is_strict=level == "strict" and calls)(
            vocabulary, self._events, declared, in_reasoning, calls
        )

    def feed(self, token_ids: Iterable[int]) -> list[ev.Event]:
        """Parse any number of further tokens, and return the events they add.

        Raises:
            MalformedCompletion: An id is not in the vocabulary. The ids before it have been parsed.
        """
        read, size = self._reader.read, self._size
        for token_id in token_ids:
            if not 0 <= token_id < size:
                problem = f"token id {token_id} is not in the vocabulary (0 to {self._size - 1})"
                raise MalformedCompletion(problem, "completion", "Parse with the vocabulary of the model that wrote it")
            read(token_id)
        return self._take_events()

    def finish(self, *, stopped: bool = False) -> list[ev.Event]:
        """End the completion: buffered text is emitted, and a call that is still open is reported as cut off.

        ``stopped``: the model ended its turn (``finish_reason`` is not ``length``), although its stop token is not
        among the tokens. Then, at the tolerant level, an open call with complete arguments counts as complete.
        """
        self._reader.finish(stopped=stopped)
        return self._take_events()

    def _take_events(self) -> list[ev.Event]:
        events = self._events.copy()
        self._events.clear()
        return events


def _reader_of(vocabulary: Vocabulary, *, is_strict: bool) -> type[Reader]:
    """Return the reader of a level for the vocabulary's format."""
    if vocabulary.format.argument_encoding == "xtml":
        return StrictXtmlReader if is_strict else TolerantXtmlReader
    return StrictReader if is_strict else TolerantReader


@dataclass(frozen=True, slots=True)
class CutCall:
    """A call that was not completed. It must not be executed."""

    header: str  # functions.NAME:INDEX, or the written prefix of the header
    arguments: str = ""  # the written part


@dataclass(frozen=True, slots=True)
class Completion:
    """A parsed turn. ``malformed``: text in sections outside well-formed calls; empty at the tolerant level."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()  # only complete calls
    cut_calls: tuple[CutCall, ...] = ()
    malformed: tuple[str, ...] = ()
    declined: tuple[str, ...] = ()  # the written parts of declined calls' headers

    @classmethod
    def from_events(cls, events: Iterable[ev.Event]) -> "Completion":
        """Collect the events of one completion."""
        events = list(events)
        calls: list[ToolCall] = []  # by position; until a call ends, its arguments are in the next list
        arguments: list[list[str]] = []
        finished: list[int] = []  # positions, in the order in which the calls ended
        cut: list[CutCall] = []
        for event in events:
            match event:
                case ev.CallStarted(_, name, index):
                    calls.append(ToolCall(name, index, ""))
                    arguments.append([])
                case ev.UndeclaredCall(position):
                    calls[position] = replace(calls[position], undeclared=True)
                case ev.RecoveryUsed(position, recovery):
                    calls[position] = replace(calls[position], recoveries=(*calls[position].recoveries, recovery))
                case ev.ArgumentsDelta(position, text):
                    arguments[position].append(text)
                case ev.ArgumentsRecovered(position, written):
                    calls[position] = replace(calls[position], written=written)
                case ev.CallFinished(position):
                    finished.append(position)
                case ev.CallCut(position):
                    call = calls[position]
                    cut.append(CutCall(KIMI_K2.call_id(call.name, call.index), "".join(arguments[position])))
                case ev.HeaderCut(text):
                    cut.append(CutCall(text))
        return cls(
            "".join(_texts(events, ev.ContentDelta)),
            "".join(_texts(events, ev.ReasoningDelta)),
            tuple(replace(calls[position], arguments="".join(arguments[position])) for position in finished),
            tuple(cut),
            tuple(_texts(events, ev.MalformedDelta)),
            tuple(event.text for event in events if isinstance(event, ev.CallDeclined)),
        )


def _texts(events: Iterable[ev.Event], kind: type[ev.TextEvent]) -> Iterator[str]:
    """Yield the text of each run of events of one kind."""
    for is_kind, run in groupby(events, key=lambda event: isinstance(event, kind)):
        if is_kind:
            yield "".join(event.text for event in run if isinstance(event, ev.TextEvent))


def parse_completion(  # noqa: PLR0913 - the parser's options, and how the completion ended
    token_ids: Iterable[int],
    vocabulary: Vocabulary,
    *,
    in_reasoning: bool = False,
    level: ParsingLevel = "strict",
    tools: Iterable[Tool] | None = None,
    stopped: bool = False,
) -> Completion:
    """Parse a whole completion, with or without its stop token; options as of :class:`constrained_k2.ToolCallParser`.

    ``stopped`` is documented at :meth:`constrained_k2.ToolCallParser.finish`.

    Raises:
        MalformedCompletion: An id is not in the vocabulary.
    """
    parser = ToolCallParser(vocabulary, in_reasoning=in_reasoning, level=level, tools=tools)
    return Completion.from_events([*parser.feed(token_ids), *parser.finish(stopped=stopped)])
