"""Chooses the masked rows of logits that a worker examines: function names, and a sample of all.

The process that knows the positions of the rows plans them. On the structured-output route this is the engine core. Its
plan travels to the workers with the masks, attached to the requests' ids, the only objects that each of vLLM's model
runners passes to the function that applies masks. On the logits-processor route the worker itself plans.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from constrained_k2.turn.intent import Intent

T = TypeVar("T")
INTERVAL = 16
"""The number of masked steps of which one is sampled."""

SAMPLED_ROWS = 4
"""The most rows of a sampled step that are examined."""


class PlannedRow(NamedTuple):
    """A masked row of a step: its request, and the number of the request's draft tokens before the row."""

    request_id: str
    offset: int


class NamedRow(NamedTuple):
    """The decision about a row that writes a function's name.

    Attributes:
        call: The call that the name belongs to; None behind a draft, which may not be accepted.
        intent: What decides whether it is made.
    """

    call: Hashable | None
    intent: Intent


class PlannedId(str):
    """The id of a structured-output request, with the offsets of its rows that are examined or write names."""

    __slots__ = ("examined", "named")
    examined: list[int]
    named: dict[int, NamedRow]

    def __new__(
        cls, request_id: str, examined: Iterable[int] = (), named: Mapping[int, NamedRow] | None = None
    ) -> Self:
        """An id equal to the given one."""
        made = super().__new__(cls, request_id)
        made.examined, made.named = list(examined), dict(named or {})
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return PlannedId, (str(self), self.examined, self.named)


def planned_ids(ids: Sequence[str], examined: Iterable[PlannedRow], named: Mapping[PlannedRow, NamedRow]) -> list[str]:
    """The ids of a step's requests, each with its rows."""
    found = {request_id: PlannedId(request_id) for request_id in ids}
    for request_id, offset in examined:
        found[request_id].examined.append(offset)
    for (request_id, offset), row in named.items():
        found[request_id].named[offset] = row
    return [each if each.examined or each.named else str(each) for each in found.values()]


def plans_of(ids: Sequence[str]) -> tuple[list[PlannedRow], dict[PlannedRow, NamedRow]]:
    """The rows that the planned ids carry: rows to examine, and rows that write functions' names."""
    planned = [each for each in ids if isinstance(each, PlannedId)]
    examined = [PlannedRow(str(each), offset) for each in planned for offset in each.examined]
    return examined, {PlannedRow(str(each), offset): row for each in planned for offset, row in each.named.items()}


class RowSampler:
    """Samples one step in ``interval`` (0: none), and takes turns among the rows where there are too many."""

    def __init__(self, interval: int | None = None) -> None:
        self._interval = INTERVAL if interval is None else interval
        self._steps = 0
        self._first = 0

    def begin_step(self) -> bool:
        """Count a masked step: True if it is sampled."""
        self._steps += 1
        return bool(self._interval) and self._steps % self._interval == 0

    def choose(self, rows: Sequence[T]) -> list[T]:
        """The rows of a sampled step to examine, of all that may be."""
        first, count = self._first, len(rows)
        self._first += SAMPLED_ROWS
        return [rows[(first + number) % count] for number in range(min(SAMPLED_ROWS, count))]


def rows_of(request_id: str, drafts: Sequence[int]) -> Iterator[PlannedRow]:
    """A request's rows in one step: the next token's, and one after each draft before the first that is illegal."""
    for offset in range(len(drafts) + 1):
        if offset and drafts[offset - 1] < 0:
            return
        yield PlannedRow(request_id, offset)
