"""Drafts of one turn: what its grammar forces next, and within a call's arguments what it makes likely."""

from collections.abc import Sequence

from constrained_k2.drafting.followed_turn import FollowedTurn
from constrained_k2.drafting.likely import likely_continuation
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.matcher import ToolCallMatcher
from constrained_k2.phases import Phase

_CHARACTERS_A_TOKEN = 4  # a guess of so many characters a token is long enough


class Drafter:
    """Drafts beside a matcher, whose state it leaves as it is.

    Args:
        matcher: The turn. Whoever owns it accepts what is sampled, and takes back what must be.
    """

    def __init__(self, matcher: ToolCallMatcher) -> None:
        self._matcher = matcher
        self._turn = FollowedTurn()

    def draft(self, limit: int) -> list[int]:
        """Tokens that may come next; in this order they are legal.

        Args:
            limit: How many at most.
        """
        matcher = self._matcher
        if matcher.num_tokens < self._turn.seen:
            self._turn = FollowedTurn()
        self._turn.follow(matcher.token_ids(self._turn.seen), matcher)
        turn = self._turn.copy()
        drafts: list[int] = []
        try:
            while len(drafts) < limit:
                taken = self._take(self._guess(turn, limit - len(drafts))[: limit - len(drafts)])
                if not taken:
                    break
                drafts += taken
                turn.follow(taken, matcher)
        finally:
            matcher.rollback(len(drafts))
        return drafts

    def _take(self, ids: Sequence[int]) -> list[int]:
        """Accept as many of the tokens as are legal."""
        taken = []
        for token_id in ids:
            try:
                # A draft is not worth having a whole batch wait for a schema's compilation, which has begun by now.
                if self._matcher.is_terminated() or not self._matcher.is_prepared:
                    break
                if not self._matcher.accept_tokens((token_id,)):
                    break
            except ConstrainedK2Error:  # the request's own trouble, which its next mask brings up
                break
            taken.append(token_id)
        return taken

    def _guess(self, turn: FollowedTurn, limit: int) -> Sequence[int]:
        """The next tokens that are likely; empty where nothing is known."""
        matcher, markers = self._matcher, self._matcher.vocabulary.format
        phase = matcher.phase
        if phase is Phase.ARGUMENTS and turn.cursor is not None:
            if turn.cursor.is_done:
                return (markers.call_end,)
            likely = likely_continuation(turn.cursor, _CHARACTERS_A_TOKEN * limit)
            return matcher.vocabulary.encode(likely) if likely else matcher.forced_tokens(limit)
        if phase is Phase.CLOSED:
            return (markers.turn_end,)
        if phase is Phase.BETWEEN:
            return (markers.section_end,)
        return matcher.forced_tokens(limit)
