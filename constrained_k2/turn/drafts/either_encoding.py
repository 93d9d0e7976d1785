"""Endings and guesses, in either encoding of arguments."""

from collections.abc import Iterator

from constrained_k2.turn.drafts.arguments_tracker import Tracker
from constrained_k2.turn.drafts.encoding import encoded_after
from constrained_k2.turn.drafts.endings import endings
from constrained_k2.turn.drafts.guesses import likely_continuation
from constrained_k2.turn.drafts.prompt_values import PromptValues
from constrained_k2.turn.drafts.xtml.endings import xtml_endings
from constrained_k2.turn.drafts.xtml.guesses import likely_tokens
from constrained_k2.turn.drafts.xtml.tracker import XtmlTracker
from constrained_k2.vocabulary.vocabulary import Vocabulary

_CHARACTERS_PER_TOKEN = 4  # the length of a guess, per draft token


def ways_to_end(tracker: Tracker) -> Iterator[str | int]:
    """Texts and markers' ids that may follow to end the arguments or the answer soonest, the best first."""
    return xtml_endings(tracker) if isinstance(tracker, XtmlTracker) else endings(tracker)


def guess(tracker: Tracker, vocabulary: Vocabulary, limit: int, values: PromptValues | None, written: str) -> list[int]:
    """About ``limit`` tokens that are likely to follow; empty if unknown. ``written`` is the end of the turn so far."""
    if isinstance(tracker, XtmlTracker):
        return likely_tokens(tracker, vocabulary, limit, values, written)
    likely = likely_continuation(tracker, _CHARACTERS_PER_TOKEN * limit, values, written)
    likely = likely.encode(errors="ignore").decode()  # a schema that is not enforced may have lone surrogates
    return encoded_after(written, likely, vocabulary)
