"""Drafts a turn's next tokens: guesses from the schema and the prompt, or what the grammar forces."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.turn.cursors.arguments_cursor import ArgumentsCursor, Cursor
from constrained_k2.turn.cursors.xtml_cursor import XtmlCursor
from constrained_k2.turn.drafts.encoding import encoded_after
from constrained_k2.turn.drafts.guesses import likely_continuation
from constrained_k2.turn.drafts.prompt_values import PromptValues
from constrained_k2.turn.drafts.xtml_guesses import likely_tokens
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.turn.phases import Phase, first_markers

_CHARACTERS_PER_TOKEN = 4  # characters to guess per draft token


class Drafter:
    """Drafts tokens for a matcher, whose state stays unchanged; ``prompt``: token ids from which values are copied."""

    def __init__(self, matcher: ToolCallMatcher, prompt: Sequence[int] = ()) -> None:
        self._matcher = matcher
        self._answer_end = first_markers(matcher.vocabulary, Phase.ANSWER, Phase.DONE)[:1]
        self._tracker = ArgumentsCursor()
        self._values = PromptValues(prompt, matcher.vocabulary) if prompt else None

    def draft(self, limit: int, after: Sequence[int] = ()) -> list[int]:
        """At most ``limit`` legal tokens that probably follow the tokens ``after``; empty if ``after`` is illegal."""
        drafts: list[int] = []
        with self._ahead(after) as cursor:
            while cursor is not None and len(drafts) < limit:
                taken = self._take(cursor, limit - len(drafts))
                if not taken:
                    break
                drafts += taken
                cursor.follow(self._matcher)
        return drafts

    @contextmanager
    def _ahead(self, after: Sequence[int]) -> Iterator[ArgumentsCursor | None]:
        """Yield the cursor after these tokens, which the matcher has accepted meanwhile; None if one is illegal."""
        matcher = self._matcher
        if matcher.num_tokens < self._tracker.num_tokens:
            self._tracker = ArgumentsCursor()
        self._tracker.follow(matcher)
        start = matcher.num_tokens
        try:
            cursor = self._tracker.copy()
            taken = self._accept(after)
            cursor.follow(matcher)
            yield cursor if len(taken) == len(after) else None
        finally:
            matcher.rollback(matcher.num_tokens - start)

    def _take(self, cursor: ArgumentsCursor, limit: int) -> list[int]:
        """Accept at most ``limit`` likely next tokens: the guessed ones, or the forced ones if the guess is wrong."""
        for ids in (self._guess, self._forced):
            taken = self._accept(ids(cursor, limit)[:limit])
            if taken:
                return taken
        return []

    def _accept(self, ids: Sequence[int]) -> list[int]:
        """Accept tokens up to the first illegal one."""
        taken: list[int] = []
        with suppress(ConstrainedK2Error):  # the request's next mask raises it again
            for token_id in ids:
                # Its schema is compiling in the background: do not block a whole batch on that.
                if self._matcher.is_terminated() or not self._matcher.is_compiled:
                    break
                if not self._matcher.accept_tokens((token_id,)):
                    break
                taken.append(token_id)
        return taken

    def _forced(self, _: ArgumentsCursor, limit: int) -> Sequence[int]:
        with suppress(ConstrainedK2Error):
            return self._matcher.forced_tokens(limit)
        return ()

    def _guess(self, cursor: ArgumentsCursor, limit: int) -> Sequence[int]:
        """The likely next tokens; empty if unknown."""
        matcher, markers = self._matcher, self._matcher.vocabulary.format
        phase = matcher.phase
        if matcher.arguments is not None and cursor.cursor is not None:
            if cursor.cursor.is_done:
                return (markers.call_end,) if phase is Phase.ARGUMENTS else self._answer_end
            return self._likely(cursor.cursor, limit, cursor.written) or self._forced(cursor, limit)
        if phase is Phase.CLOSED:
            return self._forced(cursor, limit) or (markers.turn_end,)
        if phase is Phase.BETWEEN:
            return (markers.section_end,)
        return self._forced(cursor, limit)

    def _likely(self, cursor: Cursor, limit: int, written: str) -> list[int]:
        """About ``limit`` tokens that probably follow; empty if unknown. ``written``: the latest text of the turn."""
        if isinstance(cursor, XtmlCursor):
            return likely_tokens(cursor, self._matcher.vocabulary, limit, self._values, written)
        likely = likely_continuation(cursor, _CHARACTERS_PER_TOKEN * limit, self._values, written)
        likely = likely.encode(errors="ignore").decode()  # a schema that is not enforced may have lone surrogates
        return encoded_after(written, likely, self._matcher.vocabulary)
