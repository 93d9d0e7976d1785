"""Chooses the masked rows of a step that are examined, where the positions of the rows are known.

On the structured-output route that is the engine core: its choice travels to the workers with the masks, on the list of
request ids, the only object that both of vLLM's model runners hand to the function that masks. Under a logits processor
the worker itself chooses.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

ROWS_KEY = "constrained_k2_rows"
"""The key in ``extra_args`` of a request that asks for all of its rows; its value is its front end's name for it."""

OUTPUT_FIELD = "constrained_k2"
"""The key of its rows in an output's ``kv_transfer_params``, the only free field that reaches the front end."""

REQUEST_ID_KEY = "constrained_k2_request_id"
"""The key in ``extra_args`` of the engine's request id, which vLLM does not tell logits processors."""

SAMPLED_ROWS = 4
"""The most rows of a sampled step that are examined for all requests."""

ASKED_ROWS = 64
"""The most rows of a step that are examined for requests that ask for all of their own."""


class PlannedRow(NamedTuple):
    """A row that is to be examined.

    Attributes:
        request: The request's number among those of the step; under a logits processor, the row of the logits.
        offset: The row's number among those of its request: the number of drafts before it.
        request_id: The engine's.
        position: The number of the turn's tokens before it.
        drafts: Those before it.
        asked: Its request asks for all of its rows.
        sampled: It counts for the metrics.
    """

    request: int
    offset: int
    request_id: str
    position: int
    drafts: tuple[int, ...]
    asked: bool
    sampled: bool = False


class PlannedIds(list[str]):
    """The ids of a step's structured-output requests, with the rows that are examined."""

    def __init__(self, ids: Sequence[str] = (), plan: Sequence[PlannedRow] = ()) -> None:
        super().__init__(ids)
        self.plan = list(plan)


class RowSampler:
    """Samples one step in ``interval`` (0: none), and takes turns among the rows where there are too many."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._steps = 0
        self._sampled_from = 0
        self._asked_from = 0
        self.is_sampled = False  # the current step

    def begin_step(self) -> bool:
        """Count a masked step: True if it is sampled."""
        self._steps += 1
        self.is_sampled = bool(self._interval) and self._steps % self._interval == 0
        return self.is_sampled

    def choose(self, rows: Sequence[PlannedRow]) -> list[PlannedRow]:
        """The rows of the current step to examine, of all that may be."""
        chosen: dict[tuple[int, int], PlannedRow] = {}
        asked = [row for row in rows if row.asked]
        for row in _rotated(asked, self._asked_from, ASKED_ROWS):
            chosen[row.request, row.offset] = row
        self._asked_from += ASKED_ROWS if len(asked) > ASKED_ROWS else 0
        if self.is_sampled:
            for row in _rotated(rows, self._sampled_from, SAMPLED_ROWS):
                chosen[row.request, row.offset] = row._replace(sampled=True)
            self._sampled_from += SAMPLED_ROWS
        return list(chosen.values())


def _rotated(rows: Sequence[PlannedRow], start: int, limit: int) -> Iterator[PlannedRow]:
    count = len(rows)
    return (rows[(start + number) % count] for number in range(min(limit, count)))


def rows_of(
    request: int, request_id: str, position: int, drafts: Sequence[int], *, asked: bool
) -> Iterator[PlannedRow]:
    """A request's rows in one step: the next token's, and one after each draft before the first that is illegal."""
    for offset in range(len(drafts) + 1):
        if offset and drafts[offset - 1] < 0:
            return
        yield PlannedRow(request, offset, request_id, position + offset, tuple(drafts[:offset]), asked)
