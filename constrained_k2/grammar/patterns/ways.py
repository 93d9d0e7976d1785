"""Unfolds a regex into alternatives without back-references, with anchors only outside of groups.

Such an alternative, a sequence of items, is called a way. An anchor inside of a branch or an optional group is in some
ways and not in others. If a group can match only a few texts, there is a way for each text, which then replaces the
back-references to the group. In ECMA-262, a back-reference to a group that took no part matches the empty text.

    (?:^|-)a            has two ways: the start and a, and -a
"""

import re._constants as sre  # type: ignore[import-not-found] # standard library, without stubs
from typing import Any, NamedTuple

from constrained_k2.grammar.patterns.characters import Untranslatable
from constrained_k2.grammar.patterns.tree import REPEATS, Item, Items, values, walk, width

START, END = (sre.AT, sre.AT_BEGINNING), (sre.AT, sre.AT_END)
_NAMES = {sre.AT_BOUNDARY: "a word boundary", sre.AT_NON_BOUNDARY: "a word boundary"}
_MAX_WAYS = 64
_MAX_TEXTS = 16  # max texts of a group that is referred to
_MAX_STEPS = 2048

Groups = dict[int, tuple[int, ...] | None]
"""The texts of the groups that took part, as code points; None if they are not known."""


class PatternPath(NamedTuple):
    """One way: its items, and the texts of the groups after them."""

    items: tuple[Item, ...]
    groups: Groups


class Unfolding:
    """Unfolds one pattern, at a bounded cost."""

    def __init__(self, pattern: Items) -> None:
        self._referred = {argument for operation, argument in walk(pattern) if operation is sre.GROUPREF}
        self._varying: dict[int, tuple[Item, bool]] = {}  # id of an item -> the item, whether its ways differ
        self._steps = 0

    def ways(self, items: Items) -> list[list[Item]]:
        """Return the ways of the pattern."""
        return [list(way.items) for way in self.sequence(items, {})]

    def step(self, cost: int = 1) -> None:
        """Count the cost of some work."""
        self._steps += cost
        if self._steps > _MAX_STEPS:
            raise Untranslatable("assertions in too many alternatives")

    def sequence(self, items: Items, groups: Groups) -> list[PatternPath]:
        """Return the ways of a sequence of items; ``groups`` are the texts of the groups before it."""
        ways = [PatternPath((), groups)]
        run: Items = []  # items that all ways have in common
        for item in items:
            if not self._varies(item):
                run.append(item)
                continue
            ways = self._followed([PatternPath((*way.items, *run), way.groups) for way in ways], item)
            run = []
        return [PatternPath((*way.items, *run), way.groups) for way in ways] if run else ways

    def _followed(self, ways: list[PatternPath], item: Item) -> list[PatternPath]:
        found = [
            PatternPath(way.items + more.items, more.groups) for way in ways for more in self._ways(item, way.groups)
        ]
        if len(found) > _MAX_WAYS:
            raise Untranslatable(f"assertions or back-references in more than {_MAX_WAYS} alternatives")
        return found

    def _varies(self, item: Item) -> bool:
        """True if an item has assertions, back-references, or a group that is referred to."""
        if id(item) not in self._varying:
            varies = any(
                operation in (sre.AT, sre.GROUPREF) or (operation is sre.SUBPATTERN and argument[0] in self._referred)
                for operation, argument in walk([item])
            )
            self._varying[id(item)] = item, varies
        return self._varying[id(item)][1]

    def _ways(self, item: Item, groups: Groups) -> list[PatternPath]:
        self.step()
        operation, argument = item
        if operation is sre.GROUPREF:
            return [PatternPath(tuple(_text(argument, groups)), groups)]
        if operation is sre.AT:
            if item not in (START, END):
                raise Untranslatable(_NAMES.get(argument, str(argument).lower()))
            return [PatternPath((item,), groups)]
        if operation is sre.SUBPATTERN:
            return self._group(argument[0], argument[3], groups)
        if operation is sre.BRANCH:
            alike = [way for way in argument[1] if not any(map(self._varies, way))]
            found = [PatternPath(((sre.BRANCH, (None, alike)),), groups)] if alike else []
            return found + [more for way in argument[1] if way not in alike for more in self.sequence(way, groups)]
        if operation in REPEATS:
            return self._repeated(item, groups)
        raise Untranslatable(str(operation).lower())

    def _group(self, number: int | None, inner: Items, groups: Groups) -> list[PatternPath]:
        if number not in self._referred or number is None:
            return self.sequence(inner, groups)
        texts = values(inner, _MAX_TEXTS)
        if texts is None:
            return [PatternPath(way.items, {**way.groups, number: None}) for way in self.sequence(inner, groups)]
        return [PatternPath(tuple(_literals(text)), {**groups, number: text}) for text in sorted(texts)]

    def _defined(self, items: Items) -> set[int]:
        """Return the groups inside of items to which a back-reference refers."""
        groups = {argument[0] for operation, argument in walk(items) if operation is sre.SUBPATTERN}
        return groups & self._referred

    def _repeated(self, item: Item, groups: Groups) -> list[PatternPath]:
        fewest, most, inner = item[1]
        defined = self._defined(inner)
        before = {number: text for number, text in groups.items() if number not in defined}  # an iteration forgets them
        turn = self.sequence(inner, before)
        turns = [list(way.items) for way in turn]
        if not turns:
            return [] if fewest else [PatternPath((), before)]
        if most > 1 and not any(operation is sre.AT for way in turns for operation, _ in way):
            return [
                PatternPath(
                    ((sre.MAX_REPEAT, (fewest, most, [(sre.BRANCH, (None, turns))])),), _forgotten(before, defined)
                )
            ]
        if most > 1:
            return [PatternPath(tuple(way), _forgotten(before, defined)) for way in _anchored(fewest, most, turns)]
        return [*([] if fewest else [PatternPath((), before)]), *(turn if most else [])]


def _forgotten(groups: Groups, defined: set[int]) -> Groups:
    return {**groups, **dict.fromkeys(defined)}


def _literals(text: tuple[int, ...]) -> Items:
    return [(sre.LITERAL, code) for code in text]


def _text(number: int, groups: Groups) -> Items:
    text = groups.get(number, ())
    if text is None:
        raise Untranslatable(f"a back-reference to a group of more than {_MAX_TEXTS} texts, or in a repetition")
    return _literals(text)


def without_anchors(way: list[Item]) -> tuple[bool, list[Item], bool] | None:
    """Return (True if anchored at the start, the items, True if anchored at the end); None if the way never matches.

    Items before a start anchor, or after an end anchor, must match the empty text.
    """
    first = max((number for number, item in enumerate(way) if item == START), default=-1)
    last = min((number for number, item in enumerate(way) if item == END), default=len(way))
    kept: list[Item] = []
    for number, item in enumerate(way):
        if item in (START, END):
            continue
        if first <= number <= last:
            kept.append(item)
        elif width([item])[0]:
            return None
    return first >= 0, kept, last < len(way)


def _anchored(fewest: int, most: int, turns: list[list[Item]]) -> list[list[Item]]:
    """Return the ways of a repetition whose iterations have anchors; the anchors are moved out of the repetition."""
    inner, starts, ends, wholes = list[list[Item]](), list[list[Item]](), list[list[Item]](), list[list[Item]]()
    for turn in turns:
        if found := without_anchors(turn):
            (wholes if found[0] and found[2] else starts if found[0] else ends if found[2] else inner).append(found[1])
    empty_at_start, empty_at_end = (any(not width(way)[0] for way in [*inner, *more]) for more in (starts, ends))

    def one(ways: list[list[Item]]) -> Item:
        return (sre.BRANCH, (None, ways))

    def rest(less: int, *, may_be_empty: bool) -> list[list[Item]]:
        low = 0 if may_be_empty else max(fewest - less, 0)
        high: Any = most if most is sre.MAXREPEAT else most - less
        if not inner:
            return [] if low else [[]]
        return [[(sre.MAX_REPEAT, (low, high, [one(inner)]))]] if high >= low else []

    ways = rest(0, may_be_empty=False)
    if starts:
        ways += [[START, one(starts), *more] for more in rest(1, may_be_empty=empty_at_start)]
    if ends:
        ways += [[*more, one(ends), END] for more in rest(1, may_be_empty=empty_at_end)]
    if starts and ends and most > 1:
        more_empty = empty_at_start or empty_at_end
        ways += [[START, one(starts), *more, one(ends), END] for more in rest(2, may_be_empty=more_empty)]
    is_one = fewest <= 1 or empty_at_start or empty_at_end
    wholes = wholes if is_one else [whole for whole in wholes if not width(whole)[0]]
    return ways + ([[START, one(wholes), END]] if wholes else [])
