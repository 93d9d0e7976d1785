"""States of a grammar that all calls share, with their masks: a deterministic automaton over tokens, made in use.

A step that some call has taken before is a look-up, and its mask a copy of 20 KB; the engine itself is asked only where
no call has been before. What makes two texts one state says :mod:`constrained_k2.engines.place`.
"""

import threading
from collections import OrderedDict
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from constrained_k2.bitmask import words_per_row
from constrained_k2.engines.place import Follower, Place, is_plain
from constrained_k2.grammar.plan import GrammarPlan
from constrained_k2.vocabulary import Vocabulary

_STATE_BYTES = 1500  # with its place and its steps
_NODE_BYTES = 400  # of a plan; a key in it about as much
_LONGEST_NAME = 512  # bytes
_MOST_STATES = 4096  # of one grammar
_MOST_STEPS = 256  # out of one state


class GrammarState:
    """Where a call's arguments stand.

    Attributes:
        place: In the grammar; None where that is not followed.
        is_shared: Whether all calls at this place have the same state, else it is this call's own.
        loops: Whether plain tokens are legal and lead back to it: inside a string of any characters.
        keeps: Whether plain tokens lead back to it where they are legal, which the engine must say.
        next: The states behind tokens that have been taken here; only of shared states.
        row: The mask, int32 ``[words]``; None while it is not remembered.
        rows_behind: The masks by the token before, where they depend on that; None elsewhere.
        is_complete: Whether the arguments may end here; None while that is not known.
        visits: How often the mask has been computed.
    """

    __slots__ = ("is_complete", "is_shared", "keeps", "loops", "next", "place", "row", "rows_behind", "visits")

    def __init__(self, place: Place | None) -> None:
        self.place = place
        self.is_shared = place is not None and place.is_shared
        self.keeps = place is not None and place.is_in_string
        self.loops = self.keeps and self.is_shared
        self.next: dict[int, GrammarState] = {}
        self.row: npt.NDArray[np.int32] | None = None
        self.is_complete: bool | None = None
        self.rows_behind: dict[int, npt.NDArray[np.int32]] | None = None
        self.visits = 0


class GrammarStates:
    """The states of one grammar. Several threads may use them: what one writes over another's is equal.

    Args:
        cache: What bounds the states of all grammars together.
        plan: The grammar's.

    Attributes:
        cache: As given.
        follower: Finds places in the grammar.
        start: The state in which a call's arguments begin.
        plan_bytes: What the plan holds, estimated.
    """

    def __init__(self, cache: "StateCache", plan: GrammarPlan) -> None:
        self.cache = cache
        keys = sum(len(node.object.values) for node in plan.nodes if node.object is not None)
        self.plan_bytes = _NODE_BYTES * (len(plan.nodes) + keys)
        self.follower = Follower(plan)
        self._states: dict[Place, GrammarState] = {}
        self.start = GrammarState(self.follower.start)

    def step(self, state: GrammarState, token_id: int) -> GrammarState:
        """The state behind a token that the engine has just allowed, remembered for the next call."""
        assert state.place is not None
        place = self.follower.follow(state.place, self.cache.token(token_id))
        after = state if place == state.place else self._shared(place) if place.is_shared else GrammarState(place)
        if state.is_shared and after.is_shared and len(state.next) < _MOST_STEPS:
            state.next[token_id] = after
        return after

    def keep(self, state: GrammarState, row: npt.NDArray[np.int32], behind: int | None) -> None:
        """Remember a state's mask.

        Args:
            state: The state, a shared one.
            row: The mask, int32 ``[words]``; it is copied.
            behind: The token before, where the mask is only right behind that one; else None.
        """
        known = self.cache.same(row)
        if behind is None:
            state.row = known
        elif state.rows_behind is None:
            state.rows_behind = {behind: known}
        elif len(state.rows_behind) < _MOST_STEPS:
            state.rows_behind[behind] = known
        self.cache.keep_to_budget(self)

    def forget(self) -> None:
        """Drop the states; calls that are in one go on from it."""
        dropped, self._states = self._states, {}
        self.start = GrammarState(self.follower.start)
        for state in dropped.values():  # which point at each other in circles
            state.next.clear()
            state.row = state.rows_behind = None
        self.cache.charge(-_STATE_BYTES * len(dropped))

    def begin(self) -> GrammarState:
        """The state in which a call's arguments begin."""
        self.cache.use(self)
        return self.start

    def _shared(self, place: Place) -> GrammarState:
        state = self._states.get(place)
        if state is None:
            if len(self._states) >= _MOST_STATES:
                self.forget()
            state = self._states.setdefault(place, GrammarState(place))
            self.cache.charge(_STATE_BYTES)
            self.cache.use(self)  # it may have lost all it had since the call began
        return state


class StateCache:
    """What bounds the states of all grammars over one vocabulary, and lets equal masks be one.

    Args:
        vocabulary: The vocabulary.
        budget: Bytes that masks and states may hold together, estimated; grammars whose states have not been used for
            longest lose theirs first.
    """

    def __init__(self, vocabulary: Vocabulary, budget: int) -> None:
        self._vocabulary = vocabulary
        self._budget = budget
        self._plain = bytearray(vocabulary.size)  # 0 is not known yet, 1 plain, 2 not
        self._rows: WeakValueDictionary[int, npt.NDArray[np.int32]] = WeakValueDictionary()
        self._used: OrderedDict[GrammarStates, None] = OrderedDict()
        self._lock = threading.Lock()
        self._charged = 0
        self._row_bytes = 4 * words_per_row(vocabulary.size)

    @property
    def plain(self) -> bytearray:
        """By token, 1 for what is known to be plain: see :func:`~constrained_k2.engines.place.is_plain`."""
        return self._plain

    @property
    def spent(self) -> int:
        """What masks, states and the plans behind them hold together, estimated."""
        return len(self._rows) * self._row_bytes + self._charged

    def states_of(self, plan: GrammarPlan) -> GrammarStates | None:
        """States for a grammar; None if the budget is none, or names are so long that places would take much memory."""
        return GrammarStates(self, plan) if self._budget and plan.longest_name <= _LONGEST_NAME else None

    def token(self, token_id: int) -> bytes:
        """An ordinary token's bytes; from now on it is known whether it is plain."""
        token = self._vocabulary.ordinary_bytes(token_id)
        if not self._plain[token_id]:
            self._plain[token_id] = 1 if is_plain(token) else 2
        return token

    def use(self, states: GrammarStates) -> None:
        """Note that a grammar's states are in use."""
        with self._lock:
            if states not in self._used:
                self._charged += states.plan_bytes
                self._used[states] = None
            self._used.move_to_end(states)
        self.keep_to_budget(states)

    def charge(self, more: int) -> None:
        """Note that states hold so many bytes more, or (negative) fewer."""
        with self._lock:
            self._charged += more

    def same(self, row: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """A mask that is remembered and equal to this one, int32 ``[words]``."""
        digest = hash(row.tobytes())
        with self._lock:
            known = self._rows.get(digest)
            if known is None or not np.array_equal(known, row):
                known = self._rows[digest] = row.copy()
        return known

    def forget(self) -> None:
        """Drop all states."""
        while (oldest := self._oldest()) is not None:
            self._drop(oldest)

    def keep_to_budget(self, latest: GrammarStates) -> None:
        """Drop states until the rest is within the budget; ``latest`` go last."""
        while self.spent > self._budget:
            states = self._oldest() or latest
            self._drop(states)
            if states is latest:
                break

    def _oldest(self) -> GrammarStates | None:
        with self._lock:
            return next(iter(self._used), None)

    def _drop(self, states: GrammarStates) -> None:
        with self._lock:
            if states in self._used:
                del self._used[states]
                self._charged -= states.plan_bytes
        states.forget()
