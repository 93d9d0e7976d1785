"""Joins the ways of a pattern to expressions without anchors and look-ahead.

^(?!ab)[abc]+$      becomes      [abc]+ & ~(ab.*)

Look-ahead is an intersection with all of the text behind its place. It may stand at the beginning of a match; other
patterns with look-around or word boundaries are given up.
"""

import re._constants as sre  # type: ignore[import-not-found] # standard library, without stubs
from collections.abc import Iterator
from itertools import takewhile

from constrained_k2.grammar.patterns.characters import Untranslatable
from constrained_k2.grammar.patterns.expression import NEVER, Expression, all_of, either
from constrained_k2.grammar.patterns.tree import LOOKS, Item, Items, plain
from constrained_k2.grammar.patterns.ways import Unfolding, without_anchors
from constrained_k2.grammar.spelling import Spelling

_MAX_TEXT = 200_000  # characters of the ways of one pattern, if it has several


def matching(pattern: Items, form: Spelling) -> list[Expression]:
    """Return the alternatives of the texts that contain a match; one that no text matches if there are none.

    Raises:
        Untranslatable: There is no such expression, or only a long one.
    """
    found, size = dict[Expression, None](), 0
    for starts, text in _Ways(pattern, form).onward(pattern, may_start=True):
        whole = text if starts else Expression(f"{form.character}*") + text
        found[whole] = None
        size += len(whole.text)
        if len(found) > 1 and size > _MAX_TEXT:
            raise Untranslatable("its assertions make it too long")
    return [*found] or [NEVER]


class _Ways:
    """The ways of one pattern, and of its look-ahead."""

    def __init__(self, pattern: Items, form: Spelling) -> None:
        self._form = form
        self._unfolding = Unfolding(pattern)
        self._any = Expression(f"{form.character}*")

    def onward(self, items: Items, *, may_start: bool) -> Iterator[tuple[bool, Expression]]:
        """Yield for each way whether it must be at the start, and all of the text from its place on."""
        for way in self._unfolding.ways(items):
            self._unfolding.step()
            found = without_anchors(way)
            if found is None:
                continue
            starts, kept, ends = found
            if starts and not may_start:
                raise Untranslatable("an anchor inside of look-around")
            looks = list(takewhile(lambda item: item[0] in LOOKS, kept))
            rest = kept[len(looks) :]
            if any(item[0] in LOOKS for item in rest) or any(direction < 0 for _, (direction, _) in looks):
                raise Untranslatable("look-around, other than look-ahead at the beginning of a match")
            text = Expression(plain(rest, self._form))
            yield starts, self._seen(looks, text if ends else text + self._any, starts=starts)

    def _seen(self, looks: list[Item], text: Expression, *, starts: bool) -> Expression:
        """Return those of these texts in which each look finds something, or nothing, as it wants."""
        whole, absent = list[Expression](), list[Expression]()
        for operation, (_, inside) in looks:
            ways = [way for _, way in self.onward(inside, may_start=starts)]
            (whole if operation is sre.ASSERT else absent).append(either(ways) if ways else NEVER)
        return all_of(text, *whole, none=absent)
