"""Scores two sources of drafts, a model and the grammar, by the tokens that followed."""

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple
from weakref import WeakKeyDictionary

_KEPT = 0.98  # of the older scores, with each comparison: some fifty comparisons count


class _Compared(NamedTuple):
    length: int  # of the request before the drafts, prompt included
    model: tuple[int, ...]
    grammar: tuple[int, ...]


class DraftScores:
    """The scores of a server's two sources: how many draft tokens each had right where they differed."""

    def __init__(self) -> None:
        self._model = self._grammar = 0.0
        self._latest: WeakKeyDictionary[object, _Compared] = WeakKeyDictionary()  # of each turn

    @property
    def prefers_grammar(self) -> bool:
        """True if the grammar's drafts have been better."""
        return self._grammar > self._model

    def compare(self, turn: object, token_ids: Sequence[int], model: Sequence[int], grammar: Sequence[int]) -> None:
        """Score the drafts of a turn that were compared before, and keep these two until what follows is known.

        Args:
            turn: Stands for the turn; what is kept ends with it.
            token_ids: The tokens of its request, prompt included, without the drafts.
            model: The model's drafts.
            grammar: The grammar's drafts at the same position.
        """
        before = self._latest.pop(turn, None)
        if before is not None:
            written = token_ids[before.length :]
            self._model = _KEPT * self._model + _same(before.model, written)
            self._grammar = _KEPT * self._grammar + _same(before.grammar, written)
        if _same(model, grammar) < min(len(model), len(grammar)):
            self._latest[turn] = _Compared(len(token_ids), tuple(model), tuple(grammar))

    def better(self, model: Sequence[int], grammar: Sequence[int]) -> Sequence[int]:
        """The drafts of the source that has been better; the longer ones if neither has, or if these only continue."""
        if self._grammar == self._model or _same(model, grammar) == min(len(model), len(grammar)):
            return max(model, grammar, key=len)
        return grammar if self.prefers_grammar else model


def _same(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of tokens that are the same, from the first on."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
