"""Grammar drafts on their way from the engine core to the workers, beside a step's schedule."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from constrained_k2.turn.drafts.lookahead import Guess

_TABLES = "_constrained_k2_drafts"
"""The attribute of a ``SchedulerOutput`` that holds its tables."""


class DraftTable(NamedTuple):
    """The drafts of one request for a step that is scheduled while the step before it is in flight.

    The workers look up the outcome of that step when they know it, the engine core does later; both find the same.

    Attributes:
        length: The request's tokens, prompt included, without the step in flight.
        guesses: Its outcomes, each with drafts.
    """

    length: int
    guesses: tuple[Guess, ...]

    @property
    def width(self) -> int:
        """The length of the longest drafts."""
        return max(len(guess.drafts) for guess in self.guesses)

    def chosen(self, length: int, last: int, proposed: Sequence[int]) -> Sequence[int]:
        """The drafts to verify: ours or vLLM's ``proposed`` ones.

        Ours are used if their guess came true and the proposed ones break off within what the grammar forces: these are
        the shorter ones then. Otherwise the proposed ones begin as ours do, or choose differently where there is a
        choice, which a model knows better.

        Args:
            length: The request's tokens, with the step that was in flight.
            last: The last one.
            proposed: vLLM's drafts; empty if nothing but the grammar drafts.
        """
        for guess in self.guesses:
            if self.length + guess.added == length and guess.last == last:
                forced = guess.forced if proposed else 0
                keeps = bool(proposed) and list(proposed[:forced]) == list(guess.drafts[:forced])
                return proposed if keeps else guess.drafts
        return proposed


def tables_of(scheduler_output: Any) -> dict[str, DraftTable]:
    """The tables of a step, by request id."""
    tables: dict[str, DraftTable] = getattr(scheduler_output, _TABLES, {})
    return tables


def attach(scheduler_output: Any, tables: dict[str, DraftTable]) -> None:
    """Send tables with a step's schedule."""
    setattr(scheduler_output, _TABLES, tables)
