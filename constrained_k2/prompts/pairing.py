"""Pairs tool results with the calls of a dialog, even if the client changed or lost their ids."""

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from constrained_k2.prompts.forms import name_in

# Roo Code writes "_" for each character of an id that is not a letter, a digit, "_" or "-"; hermes-agent has sent
# blanks around ids, and fc_1 for the result of call_1, both prefixes of OpenAI's responses; others leave out
# "functions.". So only letters and digits are compared, and the points at which something else separates them.
_SEPARATORS = re.compile(r"[^0-9A-Za-z]+")
_PREFIX = re.compile(r"(?:functions|call|fc)_")


def folded(call_id: str) -> str:
    """The part of an id that clients leave unchanged; empty if nothing is left."""
    return _PREFIX.sub("", _SEPARATORS.sub("_", call_id).strip("_"), count=1)


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


class _Calls:
    """The calls of a dialog by a key. Queues keep calls that were answered since; they are skipped when popped."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}  # key -> function of the latest call
        self._last: defaultdict[str, deque[Call]] = defaultdict(deque)  # calls of the last turn with calls
        self._all: defaultdict[str, deque[Call]] = defaultdict(deque)

    def add_turn(self, calls: Iterable[tuple[str, Call]]) -> None:
        self._last.clear()
        for key, call in calls:
            self._last[key].append(call)
            self._all[key].append(call)
            self.names[key] = call.name

    def take(self, key: str) -> Call | None:
        """Answer the first open call of the last turn, or else the latest of the earlier ones."""
        return _next_open(self._last.get(key)) or _next_open(self._all.get(key), latest=True)


class Pairing:
    """Pairs results with calls while a dialog is read from its start, in linear time."""

    def __init__(self) -> None:
        self._numbers = count()  # numbers of the dialog's calls
        self._by_id, self._by_folded = _Calls(), _Calls()
        self.add_turn(())

    def add_turn(self, calls: Sequence[Call]) -> None:
        """Add the calls of an assistant message."""
        given = [(call.given_id, call) for call in calls if call.given_id is not None]
        self._by_id.add_turn(given)
        ids: defaultdict[str, set[str]] = defaultdict(set)
        for given_id, _ in given:
            ids[folded(given_id)].add(given_id)
        # A folded id that different ids of one message share decides nothing.
        pairs = ((folded(given_id), call) for given_id, call in given)
        self._by_folded.add_turn((key, call) for key, call in pairs if key and len(ids[key]) == 1)
        # Queues of the last turn with calls; calls that were answered since are skipped when popped.
        self._in_order = deque(calls)
        self._by_number: dict[str, deque[Call]] = {}  # by function and number in the dialog, folded
        self._by_name: defaultdict[str, deque[Call]] = defaultdict(deque)
        for call, number in zip(calls, self._numbers, strict=False):
            self._by_number[folded(f"{call.name}:{number}")] = deque([call])
            self._by_name[call.name].append(call)

    def name_of(self, given_id: str | None) -> str | None:
        """The function of the latest call with this id, exact or else folded; None if there is none."""
        if given_id is None:
            return None
        return self._by_id.names.get(given_id) or self._by_folded.names.get(folded(given_id))

    def pair(self, results: Sequence[Result]) -> list[Call | None]:
        """Return the call that each of some consecutive results answers; None for a result without a call.

        The exact id decides first, then the folded one: open calls of the last turn in order, then earlier ones. If the
        call with a result's id is already answered, the result answers no other call: the client has dropped the call
        that repeated the id. A result with an unknown id answers an open call of the last turn: the one that it names
        with its number in the dialog, else one of the function that it names, else any.
        """
        found: list[Call | None] = [None] * len(results)
        for number, result in enumerate(results):
            if result.given_id is not None:
                found[number] = self._by_id.take(result.given_id)
        keys = [None if result.given_id is None else folded(result.given_id) for result in results]
        for number, key in enumerate(keys):
            if found[number] is None and key:
                found[number] = self._by_folded.take(key)
        unknown = [n for n, call in enumerate(found) if call is None and self.name_of(results[n].given_id) is None]
        for number in unknown:
            found[number] = _next_open(self._by_number.get(keys[number] or ""))
        for number in unknown:
            if found[number] is None:
                name = results[number].name or name_in(results[number].given_id)
                named = self._by_name.get(name) if name is not None else None
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
