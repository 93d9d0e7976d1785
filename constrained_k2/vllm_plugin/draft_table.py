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

    def came_true(self, length: int, last: int) -> Guess | None:
        """The guess that the outcome is equal to.

        Args:
            length: The request's tokens, with the step that was in flight.
            last: The last one.
        """
        return next(
            (guess for guess in self.guesses if (self.length + guess.added, guess.last) == (length, last)), None
        )

    def chosen(self, length: int, last: int, proposed: Sequence[int]) -> Sequence[int]:
        """The drafts to verify: ours or vLLM's ``proposed`` ones.

        Ours are used if their guess came true and the proposed ones differ from those of ours that count as forced:
        from a token that the grammar forces they break off, and where the grammar's drafts have been better, all of
        ours count. Otherwise the proposed ones begin as ours do, or choose differently where there is a choice.

        Args:
            length: The request's tokens, with the step that was in flight.
            last: The last one.
            proposed: vLLM's drafts; empty if nothing but the grammar drafts.
        """
        guess = self.came_true(length, last)
        if guess is None or (proposed and list(proposed[: guess.forced]) == list(guess.drafts[: guess.forced])):
            return proposed
        return guess.drafts


def tables_of(scheduler_output: Any) -> dict[str, DraftTable]:
    """The tables of a step, by request id."""
    tables: dict[str, DraftTable] = getattr(scheduler_output, _TABLES, {})
    return tables


def attach(scheduler_output: Any, tables: dict[str, DraftTable]) -> None:
    """Send tables with a step's schedule."""
    setattr(scheduler_output, _TABLES, tables)
