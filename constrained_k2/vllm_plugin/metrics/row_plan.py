"""The masked rows of a step that a worker looks at: those that write functions' names, and a sample of all.

They are known where the positions of the rows are. On the structured-output route that is the engine core: its plan
travels to the workers with the masks, on the list of request ids, the only object that both of vLLM's model runners
hand to the function that masks. Under a logits processor the worker itself plans.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from constrained_k2.turn.intent import Intent

INTERVAL = 16
"""The number of masked steps of which one is sampled."""

SAMPLED_ROWS = 4
"""The most rows of a sampled step that are examined."""


class PlannedRow(NamedTuple):
    """The place of a row.

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
        place: Its place.
        call: The call that the name belongs to.
        intent: What decides whether it is made.
    """

    place: PlannedRow
    call: Hashable
    intent: Intent


class PlannedIds(list[str]):
    """The ids of a step's structured-output requests, with the rows that are examined, and those that write names."""

    def __init__(
        self, ids: Sequence[str] = (), plan: Sequence[PlannedRow] = (), named: Sequence[NamedRow] = ()
    ) -> None:
        super().__init__(ids)
        self.plan = list(plan)
        self.named = list(named)


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
