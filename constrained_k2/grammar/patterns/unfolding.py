"""Unfolds a regex into alternatives without back-references, with anchors only outside of groups.

An alternative is a sequence of items. An anchor inside of a branch or an optional group is in some alternatives and not
in others. If a group can match only a few texts, there is an alternative for each text, which then replaces the
back-references to the group. In ECMA-262, a back-reference to a group that took no part matches the empty text.

    (?:^|-)a            has two alternatives: the start and a, and -a
"""

import re._constants as sre  # type: ignore[import-not-found] # standard library, without stubs
from typing import Any, NamedTuple

from constrained_k2.grammar.patterns.characters import Untranslatable
from constrained_k2.grammar.patterns.tree import REPEATS, Item, Items, values, walk, width

START, END = (sre.AT, sre.AT_BEGINNING), (sre.AT, sre.AT_END)
_NAMES = {sre.AT_BOUNDARY: "a word boundary", sre.AT_NON_BOUNDARY: "a word boundary"}
_MAX_ALTERNATIVES = 64
_MAX_TEXTS = 16  # max texts of a group that is referred to
_MAX_STEPS = 2048

Groups = dict[int, tuple[int, ...] | None]
"""The texts of the groups that took part, as code points; None if they are not known."""


class Unfolded(NamedTuple):
    """One alternative: its items, and the texts of the groups after them."""

    items: tuple[Item, ...]
    groups: Groups


class Unfolding:
    """Unfolds one pattern, at a bounded cost."""

    def __init__(self, pattern: Items) -> None:
        self._referred = {argument for operation, argument in walk(pattern) if operation is sre.GROUPREF}
        self._varying: dict[int, tuple[Item, bool]] = {}  # id of an item -> the item, whether its alternatives differ
        self._steps = 0

    def alternatives(self, items: Items) -> list[list[Item]]:
        """Return the alternatives of the pattern."""
        return [list(each.items) for each in self.sequence(items, {})]

    def step(self, cost: int = 1) -> None:
        """Count the cost of some work."""
        self._steps += cost
        if self._steps > _MAX_STEPS:
            raise Untranslatable("assertions in too many alternatives")

    def sequence(self, items: Items, groups: Groups) -> list[Unfolded]:
        """Return the alternatives of a sequence of items; ``groups`` are the texts of the groups before it."""
        alternatives = [Unfolded((), groups)]
        run: Items = []  # items that all alternatives have in common
        for item in items:
            if not self._varies(item):
                run.append(item)
                continue
            alternatives = self._followed([Unfolded((*each.items, *run), each.groups) for each in alternatives], item)
            run = []
        return [Unfolded((*each.items, *run), each.groups) for each in alternatives] if run else alternatives

    def _followed(self, alternatives: list[Unfolded], item: Item) -> list[Unfolded]:
        found = [
            Unfolded(each.items + more.items, more.groups)
            for each in alternatives
            for more in self._alternatives(item, each.groups)
        ]
        if len(found) > _MAX_ALTERNATIVES:
            raise Untranslatable(f"assertions or back-references in more than {_MAX_ALTERNATIVES} alternatives")
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

    def _alternatives(self, item: Item, groups: Groups) -> list[Unfolded]:
        self.step()
        operation, argument = item
        if operation is sre.GROUPREF:
            return [Unfolded(tuple(_text(argument, groups)), groups)]
        if operation is sre.AT:
            if item not in (START, END):
                raise Untranslatable(_NAMES.get(argument, str(argument).lower()))
            return [Unfolded((item,), groups)]
        if operation is sre.SUBPATTERN:
            return self._group(argument[0], argument[3], groups)
        if operation is sre.BRANCH:
            alike = [each for each in argument[1] if not any(map(self._varies, each))]
            found = [Unfolded(((sre.BRANCH, (None, alike)),), groups)] if alike else []
            return found + [more for each in argument[1] if each not in alike for more in self.sequence(each, groups)]
        if operation in REPEATS:
            return self._repeated(item, groups)
        raise Untranslatable(str(operation).lower())

    def _group(self, number: int | None, inner: Items, groups: Groups) -> list[Unfolded]:
        if number not in self._referred or number is None:
            return self.sequence(inner, groups)
        texts = values(inner, _MAX_TEXTS)
        if texts is None:
            return [Unfolded(each.items, {**each.groups, number: None}) for each in self.sequence(inner, groups)]
        return [Unfolded(tuple(_literals(text)), {**groups, number: text}) for text in sorted(texts)]

    def _defined(self, items: Items) -> set[int]:
        """Return the groups inside of items to which a back-reference refers."""
        groups = {argument[0] for operation, argument in walk(items) if operation is sre.SUBPATTERN}
        return groups & self._referred

    def _repeated(self, item: Item, groups: Groups) -> list[Unfolded]:
        fewest, most, inner = item[1]
        defined = self._defined(inner)
        before = {number: text for number, text in groups.items() if number not in defined}  # an iteration forgets them
        turn = self.sequence(inner, before)
        turns = [list(each.items) for each in turn]
        if not turns:
            return [] if fewest else [Unfolded((), before)]
        if most > 1 and not any(operation is sre.AT for each in turns for operation, _ in each):
            return [
                Unfolded(
                    ((sre.MAX_REPEAT, (fewest, most, [(sre.BRANCH, (None, turns))])),), _forgotten(before, defined)
                )
            ]
        if most > 1:
            return [Unfolded(tuple(each), _forgotten(before, defined)) for each in _anchored(fewest, most, turns)]
        return [*([] if fewest else [Unfolded((), before)]), *(turn if most else [])]


def _forgotten(groups: Groups, defined: set[int]) -> Groups:
    return {**groups, **dict.fromkeys(defined)}


def _literals(text: tuple[int, ...]) -> Items:
    return [(sre.LITERAL, code) for code in text]


def _text(number: int, groups: Groups) -> Items:
    text = groups.get(number, ())
    if text is None:
        raise Untranslatable(
            f"a back-reference in a repetition, or to a group that matches more than {_MAX_TEXTS} texts"
        )
    return _literals(text)


def without_anchors(items: list[Item]) -> tuple[bool, list[Item], bool] | None:
    """Return (True if anchored at the start, the items, True if anchored at the end); None if these never match.

    Items before a start anchor, or after an end anchor, must match the empty text.
    """
    first = max((number for number, item in enumerate(items) if item == START), default=-1)
    last = min((number for number, item in enumerate(items) if item == END), default=len(items))
    kept: list[Item] = []
    for number, item in enumerate(items):
        if item in (START, END):
            continue
        if first <= number <= last:
            kept.append(item)
        elif width([item])[0]:
            return None
    return first >= 0, kept, last < len(items)


def _anchored(fewest: int, most: int, turns: list[list[Item]]) -> list[list[Item]]:
    """Return the alternatives of a repetition whose iterations have anchors, with the anchors outside of it."""
    inner, starts, ends, wholes = list[list[Item]](), list[list[Item]](), list[list[Item]](), list[list[Item]]()
    for turn in turns:
        if found := without_anchors(turn):
            (wholes if found[0] and found[2] else starts if found[0] else ends if found[2] else inner).append(found[1])
    empty_at_start, empty_at_end = (any(not width(each)[0] for each in [*inner, *more]) for more in (starts, ends))

    def one(alternatives: list[list[Item]]) -> Item:
        return (sre.BRANCH, (None, alternatives))

    def rest(less: int, *, may_be_empty: bool) -> list[list[Item]]:
        low = 0 if may_be_empty else max(fewest - less, 0)
        high: Any = most if most is sre.MAXREPEAT else most - less
        if not inner:
            return [] if low else [[]]
        return [[(sre.MAX_REPEAT, (low, high, [one(inner)]))]] if high >= low else []

    alternatives = rest(0, may_be_empty=False)
    if starts:
        alternatives += [[START, one(starts), *more] for more in rest(1, may_be_empty=empty_at_start)]
    if ends:
        alternatives += [[*more, one(ends), END] for more in rest(1, may_be_empty=empty_at_end)]
    if starts and ends and most > 1:
        more_empty = empty_at_start or empty_at_end
        alternatives += [[START, one(starts), *more, one(ends), END] for more in rest(2, may_be_empty=more_empty)]
    is_one = fewest <= 1 or empty_at_start or empty_at_end
    wholes = wholes if is_one else [whole for whole in wholes if not width(whole)[0]]
    return alternatives + ([[START, one(wholes), END]] if wholes else [])
