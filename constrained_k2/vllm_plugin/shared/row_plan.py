"""Plans which masked rows of a step a worker examines: rows of function names, and a sample of all.

The process that knows the positions of the rows plans them. On the structured-output route this is the engine core. Its
plan travels to the workers with the masks, attached to the requests' ids, the only objects that each of vLLM's model
runners passes to the function that applies masks. On the logits-processor route the worker itself plans.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple, Self

from constrained_k2.turn.intent import Intent

INTERVAL = 16
"""The number of masked steps of which one is sampled."""

SAMPLED_ROWS = 4
"""The most rows of a sampled step that are examined."""


class PlannedRow(NamedTuple):
    """A row of a step, by the number of its request and of the draft token before it.

    Attributes:
        request: The request's number among those of the step; under a logits processor, the row of the logits.
        offset: The row's number among those of its request: the number of drafts before it.
        request_id: The engine's; empty under a logits processor.
    """

    request: int
    offset: int
    request_id: str = ""


class NamedRow(NamedTuple):
    """A row that writes a function's name.

    Attributes:
        planned: The row.
        call: The call that the name belongs to; None behind a draft, which may not be accepted.
        intent: What decides whether it is made.
    """

    planned: PlannedRow
    call: Hashable | None
    intent: Intent


class PlannedId(str):
    """The id of a structured-output request, with its rows that are examined, and those that write names."""

    __slots__ = ("named", "plan")
    plan: list[PlannedRow]
    named: list[NamedRow]

    def __new__(cls, request_id: str, plan: Sequence[PlannedRow] = (), named: Sequence[NamedRow] = ()) -> Self:
        """An id equal to the given one."""
        made = super().__new__(cls, request_id)
        made.plan, made.named = list(plan), list(named)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return PlannedId, (str(self), self.plan, self.named)


def planned_ids(ids: Sequence[str], plan: Sequence[PlannedRow], named: Sequence[NamedRow]) -> list[str]:
    """The ids of a step's requests, each with its rows."""
    found = {request_id: PlannedId(request_id) for request_id in ids}
    for row in plan:
        found[row.request_id].plan.append(row)
    for each in named:
        found[each.planned.request_id].named.append(each)
    return [each if each.plan or each.named else str(each) for each in found.values()]


def plans_of(ids: Sequence[str]) -> tuple[list[PlannedRow], list[NamedRow]]:
    """The rows that come with some of these ids."""
    planned = [each for each in ids if isinstance(each, PlannedId)]
    return [row for each in planned for row in each.plan], [row for each in planned for row in each.named]


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

    def choose(self, rows: Sequence[PlannedRow]) -> list[PlannedRow]:
        """The rows of a sampled step to examine, of all that may be."""
        first, count = self._first, len(rows)
        self._first += SAMPLED_ROWS
        return [rows[(first + number) % count] for number in range(min(SAMPLED_ROWS, count))]


def rows_of(request: int, drafts: Sequence[int], request_id: str = "") -> Iterator[PlannedRow]:
    """A request's rows in one step: the next token's, and one after each draft before the first that is illegal."""
    for offset in range(len(drafts) + 1):
        if offset and drafts[offset - 1] < 0:
            return
        yield PlannedRow(request, offset, request_id)
