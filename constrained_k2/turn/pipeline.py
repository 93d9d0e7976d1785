"""Computes the mask of a turn's next token in five stages; a sixth, in the worker, may undo it.

== ========================= ========================================= ==========================================
   stage                     who                                       rule
== ========================= ========================================= ==========================================
1  a constant phase          phase table, ``TransitionTokens``,        a set of tokens, without an engine
                             ``CallIdMatcher``
2  arguments or an answer,   ``mask_without_engine``: a row of the     a look-up, or up to 1.4 ms
   no engine is needed       DFA, or one computed from the state model
3  the same, with an engine  the engine's ``fill_batch``: LLGuidance   a fallback grammar if it fails
                             or xgrammar
4  keys and items so far     the engine's ``UniquenessFilter``         removes tokens that repeat one
5  what the client allows    ``TokenLimiter``, the thinking budget,    each narrows the row, in this order
                             the finish reserve
6  logits-processor route    the worker's kernel or ``HostMasks``      undoes a mask that leaves no finite logit
== ========================= ========================================= ==========================================

No stage empties a mask. A limit is a ``TokenLimiter``; the budgets are the thinking budget and the finish reserve. If a
limit forbids all tokens that the stages before it allow, the limit is ignored and counted. If a limit forbids all
tokens that a budget would leave, the budget wins in constant phases and when a call is complete; within arguments the
budget chooses among the tokens that the limit leaves. So budgets come first in constant phases, whose sets are
constants, and limits come first within arguments.

Example: after ``<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a": 1`` of a function with the integer
``a`` and the optional integer ``b``, stage 2 has a row with digits, ``,`` and ``}``. Inside the finish reserve, stage 5
leaves ``}``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from constrained_k2.engines.protocol import ArgumentMatcher
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.turn.phases import Phase
from constrained_k2.vocabulary.bitmask import Bitmask, TokenSet, bitmask_rows

if TYPE_CHECKING:
    from constrained_k2.turn.matcher import ToolCallMatcher

Row = npt.NDArray[np.int32]


class TokenLimiter(Protocol):
    """Removes the tokens that the client forbids from masks. It stores nothing about the turn."""

    def apply(self, turn: "ToolCallMatcher", row: Row) -> None:
        """Remove some but not all tokens from a mask of any phase, int32 ``[words]``, in place."""

    def forbids(self, turn: "ToolCallMatcher", token_id: int) -> bool:
        """True if the client forbids a token as the next one."""


class Budget(Protocol):
    """Removes tokens from masks so that a turn ends in time. What the turn accepts does not change."""

    def narrow_set(self, turn: "ToolCallMatcher", tokens: TokenSet) -> TokenSet:
        """A non-empty subset of a constant phase's tokens; transitions are not narrowed."""

    def narrows_rows(self, turn: "ToolCallMatcher") -> bool:
        """False if :meth:`narrow_row` would leave the next token's mask as it is."""

    def narrow_row(self, turn: "ToolCallMatcher", row: Row) -> None:
        """Remove some but not all tokens from a mask in the arguments, int32 ``[words]``, in place."""

    def truncate(self, num_tokens: int) -> None:
        """Forget all tokens after the first ``num_tokens``."""

    def fork(self) -> "Budget":
        """An independent copy."""


@dataclass(slots=True)
class MaskCount:
    """The number of rows filled in some phases, and their host time; with speculation, each draft position is a row."""

    rows: int = 0
    seconds: float = 0.0


def token_set(turn: "ToolCallMatcher") -> TokenSet | None:
    """The allowed tokens, before the client's limits; None if an engine's matcher decides them."""
    state = turn.state
    if state.arguments is not None:
        return None
    if state.phase is Phase.CALL_ID:
        return turn.grammar.call_ids(state.calls).allowed(state.call_id)
    if state.transition is not None:
        return state.transition.tokens
    tokens = turn.automaton.tokens(state)
    for budget in turn.budgets:
        tokens = budget.narrow_set(turn, tokens)
    return tokens


def reusable_mask(turn: "ToolCallMatcher") -> TokenSet | Row | None:
    """The mask if it is a constant set, or a row that the engine caches and never changes; else None.

    A cached row, int32 ``[words]``, is read-only; turns with the same cached mask return the same array.
    """
    if turn.limits is not None:
        return None
    state = turn.state
    if state.arguments is None:
        return token_set(turn)
    for budget in turn.budgets:
        if budget.narrows_rows(turn):
            return None
    row = state.arguments.mask_without_engine()
    if row is None or row.flags.writeable or turn.automaton.changes(state, row):
        return None
    return row


def fill_bitmask(turn: "ToolCallMatcher", bitmask: Bitmask, row: int = 0) -> None:
    """Write the allowed tokens into one row.

    If the engine forces a text, the mask allows only its canonical tokenization, while
    :meth:`ToolCallMatcher.accept_tokens` accepts any tokenization.

    Args:
        turn: The turn.
        bitmask: int32 ``[rows, words_per_row(size)]``, numpy or CPU torch; bit 1 = allowed.
        row: The row's index.

    Raises:
        SchemaTooCostly: The engine hit one of its own limits in the arguments.
    """
    rows = bitmask_rows(bitmask, turn.vocabulary.size)
    mask = rows[row]
    if not _fill_known(turn, mask):
        arguments = turn.state.arguments
        assert arguments is not None
        arguments.fill(mask, rows.address + row * rows.row_bytes)
        _narrow(turn, mask)


def fill_bitmasks(
    turns: Sequence["ToolCallMatcher"],
    bitmask: Bitmask,
    numbers: Sequence[int],
    counts: Mapping[Phase, MaskCount] | None = None,
) -> list[tuple[int, ConstrainedK2Error]]:
    """Fill a row for each turn, as :meth:`ToolCallMatcher.fill_bitmask` does for one.

    Constants are written here; an engine computes the rest in parallel without the interpreter's lock.

    Args:
        turns: The turns, each at most once, all of one vocabulary.
        bitmask: int32 ``[rows, words_per_row(size)]``, numpy or CPU torch; bit 1 = allowed.
        numbers: The row of each turn, each at most once.
        counts: A count for every phase, to which filled rows and their time are added; None to skip the timing.

    Returns:
        The rows that could not be filled, with the error: an engine hit one of its own limits there. Their content is
        undefined and they are not counted; all other rows are filled.
    """
    if not turns:
        return []
    rows = bitmask_rows(bitmask, turns[0].vocabulary.size)
    batches: dict[type[ArgumentMatcher], list[tuple[ArgumentMatcher, int]]] = {}
    computed: list[tuple[ToolCallMatcher, int]] = []
    start = perf_counter()
    for turn, number in zip(turns, numbers, strict=True):
        if not _fill_known(turn, rows[number]):
            arguments = turn.state.arguments
            assert arguments is not None
            batches.setdefault(type(arguments), []).append((arguments, number))
            computed.append((turn, number))
        elif counts is not None:
            count, now = counts[turn.phase], perf_counter()
            count.seconds += now - start
            count.rows += 1
            start = now
    if not computed:
        return []
    failures = [failure for kind, batch in batches.items() for failure in kind.fill_batch(batch, rows)]
    failed = {number for number, _ in failures}
    for turn, number in computed:
        if number not in failed:
            _narrow(turn, rows[number])
    if counts is not None:
        counts[Phase.ARGUMENTS].seconds += perf_counter() - start
        counts[Phase.ARGUMENTS].rows += len(computed) - len(failures)
    return failures


def _fill_known(turn: "ToolCallMatcher", row: Row) -> bool:
    """Fill a row, int32 ``[words]``, through all stages; False if an engine has to compute it first."""
    state = turn.state
    if state.arguments is None:
        tokens = token_set(turn)
        assert tokens is not None
        tokens.fill(row)
        if turn.limits is not None:  # after the budgets: see the module's docstring
            turn.limits.apply(turn, row)
        return True
    cached = state.arguments.mask_without_engine()
    if cached is None:
        return False
    row[:] = cached
    _narrow(turn, row)
    return True


def _narrow(turn: "ToolCallMatcher", row: Row) -> None:
    """Apply the stages after the engine to a mask, int32 ``[words]``, in place."""
    automaton, state = turn.automaton, turn.state
    if automaton.translates_arguments or state.phase is not Phase.ARGUMENTS:
        automaton.translate(state, row)
    if turn.limits is not None:
        turn.limits.apply(turn, row)
    for budget in turn.budgets:
        budget.narrow_row(turn, row)
