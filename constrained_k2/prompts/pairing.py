"""Pairs results with the calls of a dialog, whatever ids its client used."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True, eq=False)
class Call:
    """A call of the history."""

    given_id: str | None  # the client's id
    name: str
    id: str  # the canonical id
    answered: bool = False


class Result(NamedTuple):
    """The ``tool_call_id`` and the ``name`` of a tool message."""

    given_id: str | None
    name: str | None


class Pairing:
    """Pairs results with calls while a dialog is read from its start, in linear time."""

    def __init__(self) -> None:
        self._latest: dict[str, Call] = {}  # by given id
        self._open: defaultdict[str, deque[Call]] = defaultdict(deque)  # by given id, the latest last
        self.add_turn(())

    def add_turn(self, calls: Sequence[Call]) -> None:
        """Add the calls of an assistant message."""
        # Queues of the last turn with calls; those answered since are skipped when they come up.
        self._in_order = deque(calls)
        self._by_id: defaultdict[str | None, deque[Call]] = defaultdict(deque)
        self._by_name: defaultdict[str, deque[Call]] = defaultdict(deque)
        for call in calls:
            self._by_id[call.given_id].append(call)
            self._by_name[call.name].append(call)
            if call.given_id is not None:
                self._latest[call.given_id] = call
                self._open[call.given_id].append(call)

    def pair(self, results: Sequence[Result]) -> list[Call | None]:
        """Return the call that each of some consecutive results answers; None where there is none.

        The id decides first: calls of the last turn with that id, in order, then earlier ones, also answered ones.
        Results with an unknown id then answer the open calls of the last turn, first those of the function they name.
        """
        found: list[Call | None] = [None] * len(results)
        for number, result in enumerate(results):
            if result.given_id is not None:
                found[number] = (
                    _next_open(self._by_id.get(result.given_id))
                    or _next_open(self._open.get(result.given_id), latest=True)  # of an earlier turn
                    or self._latest.get(result.given_id)
                )
        for number, result in enumerate(results):
            if found[number] is None:
                named = self._by_name.get(result.name) if result.name is not None else None
                found[number] = _next_open(named) or _next_open(self._in_order)
        return found


def _next_open(calls: deque[Call] | None, *, latest: bool = False) -> Call | None:
    """Remove and return the first open call, or the latest, and mark it answered."""
    while calls:
        call = calls.pop() if latest else calls.popleft()
        if not call.answered:
            call.answered = True
            return call
    return None
