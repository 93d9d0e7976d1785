"""Drafts for a step whose first position is not known yet.

Under asynchronous scheduling a step is scheduled while the step before it is in flight: that one verifies known draft
tokens and samples one token. Its outcome is guessed where it is forced or likely, and drafts are made after each guess.
A guess is a key: once the outcome is known, the drafts after the guess that is equal to it are used, or none.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from constrained_k2.turn.drafts.drafter import Drafter

_TRIES = 4  # outcomes that are tried, per guess that is asked for


class Guess(NamedTuple):
    """An outcome of the step in flight, and what to draft after it.

    Attributes:
        added: The number of tokens that the step adds to the turn.
        last: The last one of them. Those before it are draft tokens that the step accepted.
        drafts: The draft tokens of the next step, at least one.
        forced: The number of leading ones that spell a text that the grammar forces.
    """

    added: int
    last: int
    drafts: tuple[int, ...]
    forced: int = 0


def look_ahead(drafter: Drafter, in_flight: Sequence[int], limit: int, most: int) -> list[Guess]:
    """Guess outcomes of the step in flight, the likeliest first; the matcher's state stays as it is.

    Args:
        drafter: Drafts for the turn without the step in flight.
        in_flight: The draft tokens that this step verifies.
        limit: The most draft tokens after a guess.
        most: The most guesses; four times as many outcomes are tried.
    """
    guesses: list[Guess] = []
    for accepted, token_id, drafts in islice(_outcomes(drafter, in_flight, limit), _TRIES * most):
        if len(guesses) == most:
            break
        before = (*in_flight[:accepted], token_id)
        following = drafter.draft(limit, before) if drafts is None else drafts
        if following:
            guesses.append(Guess(accepted + 1, token_id, tuple(following), drafter.forced(following, before)))
    return guesses


def _outcomes(
    drafter: Drafter, in_flight: Sequence[int], limit: int
) -> Iterator[tuple[int, int, Sequence[int] | None]]:
    """Outcomes: how many draft tokens are accepted, the token after them, and the drafts after it if they are known."""
    likely = drafter.draft(limit + 1, in_flight)
    if likely:
        yield len(in_flight), likely[0], likely[1:]
    for accepted in range(len(in_flight), -1, -1):
        known = [*in_flight, *likely[:1]][accepted:][:1]
        for token_id in drafter.alternatives(in_flight[:accepted]):
            if token_id not in known:
                yield accepted, token_id, None
