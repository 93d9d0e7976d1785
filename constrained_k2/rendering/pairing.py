"""Which result belongs to which call of a dialog, whatever ids its client gave them."""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Call:
    """A call of the history.

    Attributes:
        given_id: The id that the client gave it; None if it gave none.
        name: The function's name.
        id: The canonical id.
        answered: Whether a result of it has come.
    """

    given_id: str | None
    name: str
    id: str
    answered: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool message says of the call it answers.

    Attributes:
        given_id: Its ``tool_call_id``; None if it has none.
        name: Its ``name``; None if it has none.
    """

    given_id: str | None
    name: str | None


class Pairing:
    """Pairs results with calls while a dialog is read from its start, in time linear in the dialog."""

    def __init__(self) -> None:
        self._latest: dict[str, Call] = {}  # by given id
        self._open: defaultdict[str, list[Call]] = defaultdict(list)  # by given id, the latest last
        # The calls of the last turn that made some. Those answered meanwhile are passed over when they come up.
        self._in_order: deque[Call] = deque()
        self._by_id: dict[str | None, deque[Call]] = {}
        self._by_name: dict[str | None, deque[Call]] = {}

    def add_turn(self, calls: Sequence[Call]) -> None:
        """Note the calls of an assistant message."""
        self._in_order = deque(calls)
        self._by_id = _queues((call.given_id, call) for call in calls)
        self._by_name = _queues((call.name, call) for call in calls)
        for call in calls:
            if call.given_id is not None:
                self._latest[call.given_id] = call
                self._open[call.given_id].append(call)

    def pair(self, results: Sequence[Result]) -> list[Call | None]:
        """The call that each of some consecutive results answers; None where there is none.

        An id is believed first: among several calls with it, the last turn's come first and, in a turn, in their
        order. Then results whose id says nothing answer what the last turn has left open, in order, those with a
        function's name only that function's calls while it has some. A further result of a call goes to it again.
        """
        found: list[Call | None] = [None] * len(results)
        for number, result in enumerate(results):
            if result.given_id is not None:
                found[number] = _next_open(self._by_id.get(result.given_id)) or self._earlier(result.given_id)
        for number, result in enumerate(results):
            if found[number] is None:
                named = self._by_name.get(result.name) if result.name is not None else None
                found[number] = _next_open(named) or _next_open(self._in_order)
        return found

    def _earlier(self, given_id: str) -> Call | None:
        """The latest open call of an earlier turn with this id; else the latest of all with it, for a second time."""
        calls = self._open.get(given_id, [])
        while calls:
            call = calls.pop()
            if not call.answered:
                call.answered = True
                return call
        return self._latest.get(given_id)


def _queues(calls: Iterable[tuple[str | None, Call]]) -> dict[str | None, deque[Call]]:
    queues: defaultdict[str | None, deque[Call]] = defaultdict(deque)
    for key, call in calls:
        queues[key].append(call)
    return dict(queues)


def _next_open(queue: deque[Call] | None) -> Call | None:
    """Take the first open call, which is answered by that."""
    while queue:
        call = queue.popleft()
        if not call.answered:
            call.answered = True
            return call
    return None
