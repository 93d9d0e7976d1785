"""Lazily built DFAs over tokens, one per grammar; caches their masks within a memory budget.

A step that an earlier call has taken is a dictionary lookup, and its mask is a copy of 20 KB, unless it was evicted.
LLGuidance runs only for new steps. :mod:`constrained_k2.engines.llguidance.position` decides which prefixes share a
state.

If a second call of a function writes {"to": "up"} again, all its seven steps and masks come from this cache.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import cached_property
from weakref import WeakValueDictionary

import llguidance
import numpy as np
import numpy.typing as npt

from constrained_k2.engines.llguidance.dfa_state import DfaState
from constrained_k2.engines.llguidance.direct.masks import DirectMasks
from constrained_k2.engines.llguidance.direct.residual import Residuals
from constrained_k2.engines.llguidance.direct.rules import DirectModel, ValueRule
from constrained_k2.engines.llguidance.direct.values import Terminal
from constrained_k2.engines.llguidance.position import MARKER, Position, class_of
from constrained_k2.engines.llguidance.position_tracker import PositionTracker
from constrained_k2.engines.llguidance.uniqueness.tokens import TokenEffects
from constrained_k2.engines.llguidance.xtml_position import XtmlStates
from constrained_k2.grammar.patterns.string_states import KnownStrings
from constrained_k2.grammar.state_model import StateModel
from constrained_k2.schema.shapes import Shape
from constrained_k2.vocabulary.bitmask import words_per_row
from constrained_k2.vocabulary.vocabulary import Vocabulary

_STATE_BYTES = 1500  # estimate, with its parser state and steps
_NODE_BYTES = 400  # estimate for a node of the state model, and for each of its keys
_MAX_NAME_BYTES = 512
_SHORT = 64  # bytes: few tokens have more
_MAX_STATES = 4096  # DFA states of one grammar
_STRINGS_SHARE = 8  # string states may take an eighth of the budget
_MAX_STEPS = 256  # cached steps from one state
_PAID_AT_ONCE = 8  # the budget is charged for this many states at a time
_logger = logging.getLogger(__name__)


class LazyDfa:
    """The DFA of one grammar. Thread-safe: threads that write the same entry write equal values."""

    def __init__(self, cache: "MaskCache", model: StateModel, direct: DirectModel | None = None) -> None:
        self.cache = cache
        rule = None if direct is None else direct[model.root]
        # True if the arguments are one object and nothing else, so they are complete when it is closed.
        self.ends_with_object = rule is not None and rule == ValueRule(object=rule.object)
        self._direct = cache.direct_masks() if direct is not None and self.ends_with_object else None
        self._residuals: Residuals | None = None
        if self._direct is not None and direct is not None:
            self._residuals = self._direct.residuals(direct)
        self.model_bytes = _NODE_BYTES * (len(model.nodes) + model.key_count)
        given = (model, cache.strings)
        self.tracker = PositionTracker(*given) if model.arguments is None else XtmlStates(model.arguments, *given)
        if self._residuals is not None:
            self.tracker.free_keys = self._residuals.free_keys
        self._states: dict[Position, DfaState] = {}
        self.paid_states = 0  # states charged to the cache's budget
        self.digests: dict[str, None] = {}  # the schemas that share this grammar, for the log
        self.start = DfaState(self.tracker.start)

    @property
    def is_unpaid(self) -> bool:
        """True if the DFA has more states than the cache's budget was charged for."""
        return len(self._states) > self.paid_states

    def begin(self) -> DfaState:
        """Return the start state, and mark the grammar as recently used."""
        self.cache.use(self)
        return self.start

    def step(self, state: DfaState, token_id: int) -> DfaState:
        """Return the state after a token that the grammar accepts, and cache the step."""
        assert state.position is not None
        token = self.cache.tokens.get(token_id) or self.cache.token(token_id)
        position = self.tracker.follow(state.position, token)
        after = state if position == state.position else self._states.get(position) or self._made(position)
        if state.is_shared and after.is_shared and len(state.next) < _MAX_STEPS:
            state.next[token_id] = after
        return after

    def allowed(self, state: DfaState) -> npt.NDArray[np.int32] | None:
        """Return the tokens that the grammar accepts, int32 ``[words]``; None if only LLGuidance can compute them."""
        if state.is_direct is None:
            state.is_direct = False
            if self._residuals is not None and self._direct is not None and state.position is not None:
                residual = self._residuals.of(state.position)
                row = None if residual is None else self._direct.allowed(residual)  # may evict this state
                if row is self._direct.empty:  # an error of this package: LLGuidance computes the mask again
                    self.cache.note_empty_mask(self.digests)
                elif row is not None:
                    assert residual is not None
                    state.allowed, state.is_direct = row, True
                    state.forced = residual if residual.is_forced else None
        return state.allowed

    def direct_mask(self, state: DfaState, previous: int) -> npt.NDArray[np.int32] | None:
        """Return the mask, int32 ``[words]``; None if only LLGuidance can compute it. ``previous``: the last token."""
        row = state.allowed if state.is_direct else self.allowed(state)
        if row is None or state.forced is None or previous < 0 or self._direct is None:
            return row
        return self._direct.forced(state.forced, previous)

    def cache_mask(self, state: DfaState, row: npt.NDArray[np.int32], previous: int | None) -> None:
        """Cache a copy of a shared state's mask; ``previous``: the last token's id; None if it does not matter."""
        row = self.cache.intern(row)
        if previous is None:
            state.row = row
        elif state.rows_after is None:
            state.rows_after = {previous: row}
        elif len(state.rows_after) < _MAX_STEPS:
            state.rows_after[previous] = row
        self.cache.evict_over_budget()

    def clear(self) -> None:
        """Drop the states. A call that is in a dropped state can still continue from it."""
        dropped, self._states = self._states, {}
        self.start = DfaState(self.tracker.start)
        for state in dropped.values():  # break the reference cycles
            state.next.clear()
            state.row = state.rows_after = state.allowed = state.forced = state.is_direct = None
        self.tracker.shapes.clear()
        self.cache.repay(self)

    def _made(self, position: Position) -> DfaState:
        """Return the DFA state that all calls in this parser state share, or a new one if the state is not shared."""
        is_shared = position.is_shared
        if is_shared and len(self._states) >= _MAX_STATES:
            self.clear()
        representative = None if position.string is None else position.representative
        state = DfaState(
            position, None if representative is None else self._states.get(representative) or self._made(representative)
        )
        if is_shared:
            state = self._states.setdefault(position, state)
            if len(self._states) > self.paid_states:
                self.cache.use(self)  # it may have been evicted since the call began
        return state


class MaskCache:
    """Keeps the DFA states of all grammars over one vocabulary within a budget of estimated bytes; interns masks."""

    def __init__(self, vocabulary: Vocabulary, budget: int, tokenizer: llguidance.LLTokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._budget = budget
        self.classes = bytearray(vocabulary.size)  # by token id: a TokenClass, 0 if unknown yet
        self.tokens: dict[int, bytes] = {}  # token id -> bytes, for the tokens whose class is known
        self._rows: WeakValueDictionary[int, npt.NDArray[np.int32]] = WeakValueDictionary()
        self._used: OrderedDict[LazyDfa, None] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()
        self._charged = 0
        self.strings = KnownStrings(
            _long_lengths(vocabulary), self.charge, budget // _STRINGS_SHARE, self._clear_users_of
        )
        self._token_effects: TokenEffects | None = None  # with budget 0, built for the first schema that needs it
        self._direct_masks: DirectMasks | None = None  # likewise
        self.on_empty_mask: Callable[[], None] = lambda: None
        self._making = threading.Lock()
        self._row_bytes = 4 * words_per_row(vocabulary.size)
        if budget:  # now rather than within some request's first mask
            self.direct_masks()
            self.token_effects()

    @property
    def spent(self) -> int:
        direct = 0 if self._direct_masks is None else self._direct_masks.spent
        return len(self._rows) * self._row_bytes + self._charged + direct

    def dfa(self, model: StateModel, direct: DirectModel | None = None) -> LazyDfa | None:
        """Return a DFA for a grammar; None without a budget, or if long names would make parser states large."""
        return LazyDfa(self, model, direct) if self._budget and model.longest_name <= _MAX_NAME_BYTES else None

    def direct_masks(self) -> DirectMasks:
        """Return the object that computes masks without LLGuidance, built at the first call."""
        with self._making:
            if self._direct_masks is None:
                self._direct_masks = DirectMasks(
                    self._vocabulary, self._budget // 2, self.intern, self.evict_over_budget, self._tokenizer
                )
        return self._direct_masks

    def is_read(self, expression: str) -> bool:
        """Return True if LLGuidance compiles a terminal of strings, so that direct masks may use it."""
        terminal = Terminal(is_string=True, expression=expression)
        return self._budget > 0 and self.direct_masks().terminals.is_readable(terminal)

    @cached_property
    def text_tokens(self) -> npt.NDArray[np.int32]:
        """The bitmask of all ordinary tokens and the engine's stop token, int32 ``[words]``, read-only."""
        allowed = np.ones(8 * self._row_bytes, dtype=bool)
        allowed[list(self._vocabulary.unordinary_ids)] = False
        allowed[self._vocabulary.size :] = False
        allowed[self._vocabulary.format.engine_stop] = True
        row = np.packbits(allowed, bitorder="little").view(np.int32)
        row.flags.writeable = False
        return row

    def token_effects(self) -> TokenEffects:
        """Return the vocabulary's tokens by their effect on keys and items, classified at the first call."""
        with self._making:
            if self._token_effects is None:
                self._token_effects = TokenEffects(self._vocabulary)
        return self._token_effects

    def token(self, token_id: int) -> bytes:
        """Return a token's bytes (a special token's text follows :data:`MARKER`), and record its class."""
        token = self._vocabulary.ordinary_bytes(token_id)
        if not token:
            token = MARKER + (self._vocabulary.special_text(token_id) or "").encode()
        self.classes[token_id] = class_of(token)
        self.tokens[token_id] = token
        return token

    def note_empty_mask(self, digests: Iterable[str]) -> None:
        """Count and log a mask without tokens, computed without LLGuidance. ``digests`` name the grammar's schemas."""
        self.on_empty_mask()
        message = "schema %s: a mask allowed no token; LLGuidance computes it. Please report the schema."
        _logger.warning(message, " or ".join(digests))

    def use(self, dfa: LazyDfa) -> None:
        """Mark a grammar's states as recently used, and charge for new ones."""
        with self._lock:
            if dfa not in self._used:
                self._charged += dfa.model_bytes
                self._used[dfa] = None
            self._used.move_to_end(dfa)
            if dfa.is_unpaid:
                dfa.paid_states += _PAID_AT_ONCE
                self._charged += _PAID_AT_ONCE * _STATE_BYTES
        self.evict_over_budget()

    def repay(self, dfa: LazyDfa) -> None:
        """Release what was charged for a grammar's states."""
        with self._lock:
            self._charged -= dfa.paid_states * _STATE_BYTES
            dfa.paid_states = 0

    def charge(self, more: int) -> None:
        """Charge bytes to the budget; negative to release them."""
        with self._lock:
            self._charged += more

    def _clear_users_of(self, shapes: tuple[Shape, ...]) -> None:
        """Drop the DFA states of all grammars whose parser states contain string states of these (dropped) shapes."""
        with self._lock:
            users = [dfa for dfa in self._used if shapes in dfa.tracker.shapes]
        for dfa in users:
            dfa.clear()

    def intern(self, row: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Intern a mask, int32 ``[words]``: return the stored equal one, read-only."""
        content = row.tobytes()
        digest = hash(content)
        with self._lock:
            known = self._rows.get(digest)
            if known is None or known.tobytes() != content:
                known = self._rows[digest] = row.copy()
                known.flags.writeable = False  # marks rows that callers may keep, unlike rows made for one call
        return known

    def clear(self) -> None:
        """Drop all states."""
        while (oldest := self._oldest()) is not None:
            self._evict(oldest)
        self.strings.clear()
        if self._direct_masks is not None:
            self._direct_masks.clear()

    def evict_over_budget(self) -> None:
        """Evict the states of the least recently used grammars until the cache is within the budget."""
        while self.spent > self._budget and (oldest := self._oldest()) is not None:
            self._evict(oldest)

    def _oldest(self) -> LazyDfa | None:
        with self._lock:
            return next(iter(self._used), None)

    def _evict(self, dfa: LazyDfa) -> None:
        with self._lock:
            if dfa in self._used:
                del self._used[dfa]
                self._charged -= dfa.model_bytes
        dfa.clear()


def _long_lengths(vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return all numbers of characters, above 64, by which one token may lengthen a JSON string; ascending."""
    lengths: set[int] = set()
    for token in map(vocabulary.ordinary_bytes, range(vocabulary.size)):
        if token is not None and len(token) > _SHORT:
            plain = token.isascii() and not set(token) & {0x22, 0x5C}
            lengths.update((len(token),) if plain else range(_SHORT + 1, len(token) + 1))
    return tuple(sorted(lengths))
