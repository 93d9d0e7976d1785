"""Checks that drafts are legal, within their limit, and leave the matcher as it was."""

from collections.abc import Iterable

from constrained_k2.turn.drafts.drafter import Drafter
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.vocabulary.bitmask import allocate_bitmask


def assert_drafts_are_legal(matcher: ToolCallMatcher, drafter: Drafter, written: Iterable[int], limit: int = 6) -> None:
    """Write a turn, and check the drafts before each of its tokens."""
    before, after = (allocate_bitmask(1, matcher.vocabulary.size) for _ in range(2))
    for token_id in written:
        matcher.fill_bitmask(before)
        drafts = drafter.draft(limit)
        matcher.fill_bitmask(after)
        assert (before == after).all() and len(drafts) <= limit
        assert matcher.fork().accept_tokens(drafts)
        assert matcher.accept_tokens([token_id])
