"""The streaming parser: token ids in, events out, one token at a time whatever the chunks."""

from collections.abc import Iterable
from typing import Literal, Protocol, get_args

from constrained_k2.errors import InvalidRequest, MalformedCompletion
from constrained_k2.parsing.events import Event
from constrained_k2.parsing.strict import StrictReader
from constrained_k2.parsing.tolerant import TolerantReader
from constrained_k2.tools import Tool
from constrained_k2.vocabulary import Vocabulary

ParsingLevel = Literal["strict", "tolerant"]
"""``strict``: exactly the format, for constrained output. ``tolerant``: also what
:data:`constrained_k2.parsing.leniencies.LENIENCIES` lists, each recorded on the call."""

PARSING_LEVELS: tuple[ParsingLevel, ...] = get_args(ParsingLevel)


class Reader(Protocol):
    """One level's machine. It appends what it finds to a list of events that the parser owns."""

    def read(self, token_id: int) -> None:
        """Take one token, which is in the vocabulary."""

    def finish(self) -> None:
        """Take the end of the completion."""


class ToolCallParser:
    """Reads one completion by token id.

    At the strict level a marker is the special token and nothing else: one spelled out of ordinary tokens is text, and
    what stands in a section without being a call comes as :class:`MalformedDelta`. At the tolerant level what is no
    call stays content, or reasoning. At both, what the model wrote outside calls is never lost and never a call:
    special tokens in text stay in it as text.

    Args:
        vocabulary: The model's vocabulary.
        in_reasoning: Whether the prompt ended in ``<think>``.
        level: How exactly the format has to be kept.
        tools: The tools that may be called, so that calls of others are reported as such; None if they are not known.
        calls: Whether calls are looked for. If not, all is content or reasoning, markers spelled out.

    Raises:
        InvalidRequest: There is no such level.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        in_reasoning: bool = False,
        level: ParsingLevel = "strict",
        tools: Iterable[Tool] | None = None,
        calls: bool = True,
    ) -> None:
        if level not in PARSING_LEVELS:
            raise InvalidRequest(f"{str(level)[:40]!r} is no level", "level", f"Use {' or '.join(PARSING_LEVELS)}")
        self._size = vocabulary.size
        self._events: list[Event] = []
        declared = None if tools is None else frozenset(tool.name for tool in tools)
        self._reader: Reader = (
            StrictReader(vocabulary, self._events, in_reasoning=in_reasoning, declared=declared)
            if level == "strict" and calls
            else TolerantReader(vocabulary, self._events, in_reasoning=in_reasoning, declared=declared, calls=calls)
        )

    def feed(self, token_ids: Iterable[int]) -> list[Event]:
        """Read more tokens.

        Args:
            token_ids: The next tokens of the completion, any number of them.

        Returns:
            What they add. Feeding a completion in other chunks gives the same events in the same order.

        Raises:
            MalformedCompletion: An id is not in the vocabulary. What came before it has been read.
        """
        for token_id in token_ids:
            if not 0 <= token_id < self._size:
                raise MalformedCompletion(
                    f"token id {token_id} is not in the vocabulary (0 to {self._size - 1})",
                    "completion",
                    "Parse with the vocabulary of the model that wrote it",
                )
            self._reader.read(token_id)
        return self._take_events()

    def finish(self) -> list[Event]:
        """Say that no more tokens come: what was held back comes out, a call still open is reported as cut off."""
        self._reader.finish()
        return self._take_events()

    def _take_events(self) -> list[Event]:
        events = self._events.copy()
        self._events.clear()
        return events
