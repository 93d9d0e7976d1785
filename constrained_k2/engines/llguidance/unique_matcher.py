"""A matcher of arguments that forbids the tokens that would repeat an item where that is invalid."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from constrained_k2.engines.llguidance.distinct_keys.tokens import KeyTokens
from constrained_k2.engines.llguidance.keys_matcher import DistinctKeysMatcher
from constrained_k2.engines.llguidance.unique_items.tokens import TokenIndex, allowed_of, forbid
from constrained_k2.engines.llguidance.unique_items.tracker import Expect, Position, Tracker
from constrained_k2.engines.llguidance.unique_items.written import WrittenItems
from constrained_k2.grammar.lark.places import NOWHERE

if TYPE_CHECKING:
    from constrained_k2.engines.llguidance.engine import LLGuidanceGrammar

Row = npt.NDArray[np.int32]
Ending = Callable[[bytes], Sequence[int]]


class UniqueItemsMatcher(DistinctKeysMatcher):
    """An LLGuidance matcher whose masks, and what it accepts, leave out repeated items.

    No mask becomes empty by that: what could only end in a repetition is left out before it begins. Where the grammar
    of any JSON object goes on, items may come twice: it writes items that the schema does not know.
    """

    __slots__ = ("_positions", "_tokens", "_tracker")

    def __init__(
        self, grammar: "LLGuidanceGrammar", location: str, keys: KeyTokens, tracker: Tracker, *, may_relax: bool
    ) -> None:
        super().__init__(grammar, location, keys, may_relax=may_relax)
        self._tracker = tracker
        self._tokens: TokenIndex = tracker.tokens
        self._positions = [tracker.start]  # before each token, and the current one

    def cached_mask(self) -> Row | None:
        cached = super().cached_mask()
        if cached is None or not self._is_inside(self._positions[-1]):
            return cached
        row = cached.copy()
        self._leave_out_items(row)
        return row

    def accept(self, token_id: int) -> bool:
        if not super().accept(token_id):
            return False
        before = self._positions[-1]
        after = self._followed(token_id)
        if after is None:
            self._tracker.restore(before)
            super().rollback(1)
            return False
        self._positions.append(after)
        return True

    def _followed(self, token_id: int) -> Position | None:
        """Return the position after a token; None if it repeats an item."""
        before = self._positions[-1]
        if self.grammar.step == "any":
            return before
        return self._tracker.follow(before, self.grammar.token(token_id))

    def rollback(self, count: int) -> None:
        super().rollback(count)
        if count:
            del self._positions[-count:]
            self._tracker.restore(self._positions[-1])

    def fork(self) -> "UniqueItemsMatcher":
        copy = UniqueItemsMatcher(
            self.grammar, self._location, self._key_tokens, self._tracker, may_relax=self._may_relax
        )
        for token_id in self._ids:
            copy._accept_again(token_id)
        return copy

    def _accept_again(self, token_id: int) -> None:
        super()._accept_again(token_id)
        after = self._followed(token_id)
        assert after is not None
        self._positions.append(after)

    def _is_inside(self, position: Position) -> bool:
        """Return True if a token may repeat an item here, or hold two equal ones."""
        if self.grammar.step == "any":
            return False
        if position.items is not None or position.item is not None:
            return True
        has_place = position.place != NOWHERE or any(frame.place != NOWHERE for frame in position.frames)
        return has_place and len(self._tokens.opened_array) > 0

    def restrict(self, row: Row) -> None:
        super().restrict(row)
        self._leave_out_items(row)

    def _leave_out_items(self, row: Row) -> None:
        """Remove the tokens that repeat an item from a mask, int32 ``[words]``, in place."""
        position = self._positions[-1]
        if not self._is_inside(position):
            return
        tokens, items = self._tokens, position.items
        tried = [tokens.opened_array, *self._ends_of_object(position)]
        if items is not None and position.expect is Expect.IN_STRING:
            self._restrict_rest(position, items, tokens.closing, row)
            tried += self._ends_and_more(position.text, items)
        elif items is not None:
            tried += [tokens.word_and_comma, tokens.whole_and_comma]
            if position.expect is Expect.IN_WORD:
                self._restrict_rest(position, items, tokens.ending, row)
                self._restrict_after_word(position, items, row)
            else:
                forbid(items.outside, row)
                if items.is_exhausted:
                    row &= ~tokens.commas
        for ids in tried:
            forbid(self._repeating(position, allowed_of(ids, row)), row)

    def _ends_of_object(self, position: Position) -> Iterator[npt.NDArray[np.int64]]:
        """Yield tokens that may end an object or array that is an item, or one of its members."""
        tokens, item, items = self._tokens, position.item, position.items
        if item is None:
            if items is not None and items.spec is not None and items.spec.has_containers:
                yield tokens.opened_item
            return
        yield tokens.opened_item
        if not item.agreeing:
            return
        if item.members is None:  # only its end may be a repetition
            is_in_member = not position.is_member or position.expect not in {Expect.AFTER, Expect.KEY}
            yield tokens.bracket if item.has_as_many(int(is_in_member)) else tokens.member
            return
        if position.expect is Expect.IN_KEY:
            yield tokens.quoted
        elif position.expect is not Expect.IN_STRING:
            yield tokens.structure
        elif not position.is_member or item.may_agree(position.text):
            yield tokens.string_and_more

    def _ends_and_more(self, text: bytes, items: WrittenItems) -> Iterator[npt.NDArray[np.int64]]:
        """Yield tokens that may end a string, and then begin an item that can only repeat one, or hold a whole one."""
        yield self._tokens.string_and_item
        if items.after_string:
            yield np.array(items.after_string, dtype=np.int64)
        if items.has_one_way(text):  # what the string begins with may be spent after it
            yield self._tokens.string_and_comma
        elif not items.language.is_endless and (ids := self._tokens.second_longer(text)):
            yield np.array(ids, dtype=np.int64)

    def _restrict_rest(self, position: Position, items: WrittenItems, ending: Ending, row: Row) -> None:
        """Remove what ends the item that is being written as one that is there, or leads to nothing else."""
        for rest in items.beginning_with(position.text):
            forbid(ending(rest), row)
        for rest in items.spent_after(position.text):
            forbid(self._tokens.going_on(rest), row)

    def _restrict_after_word(self, position: Position, items: WrittenItems, row: Row) -> None:
        """Remove what ends a number at once, if it is there; if not, what repeats it then in the next item."""
        text = position.text
        if text in items:
            row &= ~self._tokens.ends
        elif position.values is None and items.language.ways(text)[1]:
            count = len(items)
            items.add(text)
            if items.is_exhausted:
                row &= ~self._tokens.commas
            else:
                forbid(self._tokens.after_comma.intersection(items.outside), row)
            items.truncate(count)

    def _repeating(self, position: Position, ids: Iterable[int]) -> list[int]:
        """Return those of these tokens that cannot be accepted here."""
        found = []
        for token_id in ids:
            if self._tracker.follow(position, self.grammar.token(token_id)) is None:
                found.append(token_id)
            self._tracker.restore(position)
        return found
