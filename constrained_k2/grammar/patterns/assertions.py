"""Joins the ways of a pattern to expressions without anchors, look-around and word boundaries.

^(?!ab)[abc]+$      becomes      [abc]+ & ~(ab.*)
"""

import math
import re._constants as sre  # type: ignore[import-not-found] # standard library, without stubs
from typing import Literal, NamedTuple

from constrained_k2.grammar.patterns.characters import Untranslatable
from constrained_k2.grammar.patterns.expression import EMPTY, NEVER, Expression, all_of, either
from constrained_k2.grammar.patterns.parts import (
    Chunk,
    Look,
    Part,
    Turns,
    characters,
    has_far_anchor,
    is_short,
    longest_of,
    overlap,
    parts_of,
    width_of,
    with_behind_first,
)
from constrained_k2.grammar.patterns.tree import LOOKS, Item, Items, plain, walk, width
from constrained_k2.grammar.patterns.ways import Unfolding, without_anchors
from constrained_k2.grammar.spelling import Spelling

_MAX_TEXT = 200_000  # characters of the ways of one pattern, if it has several
_MAX_TURNS = 4  # of a repetition that is written out
_SAME_TEXT = "look-ahead and look-behind at the same text"


_Side = Literal["open", "edge", "inside", "text"]


class _Sides(NamedTuple):
    """The text beyond both ends of some items: any, none, or text that other items match (``text``: not empty)."""

    before: _Side
    after: _Side

    def seen_by(self, look: Look) -> bool:
        """True if all of the text that a look may look at is known."""
        return (self.after if look.is_ahead else self.before) in {"open", "edge"}


class Assertions:
    """Writes one pattern without assertions."""

    def __init__(self, pattern: Items, form: Spelling) -> None:
        self._pattern = pattern
        self._form = form
        self._unfolding = Unfolding(pattern)
        self._any = Expression(f"{form.character}*")
        self._anything = Chunk(self._any, 0, math.inf)

    def found(self) -> list[Expression]:
        """Return the alternatives of the texts that contain a match; one that no text matches if there are none."""
        ways = self._unfolding.ways(self._pattern)
        found: list[Expression] = []
        for way in ways:
            found += self._way(way, _Sides("open", "open"))
            if len(ways) > 1 and sum(len(one.text) for one in found) > _MAX_TEXT:
                raise Untranslatable("its assertions make it too long")
        return list(dict.fromkeys(found)) or [NEVER]

    def _language(self, ways: list[list[Item]], sides: _Sides) -> Expression:
        found = [one for way in ways for one in self._way(way, sides)]
        return either(found) if found else NEVER

    def _way(self, way: list[Item], sides: _Sides) -> list[Expression]:
        self._unfolding.step()
        found = without_anchors(way)
        if found is None:
            return []
        starts, items, ends = found
        if (starts and sides.before == "text") or (ends and sides.after == "text"):
            return []
        if (starts and sides.before == "inside") or (ends and sides.after == "inside"):
            raise Untranslatable("an anchor inside of look-around")
        sides = _Sides("edge" if starts else sides.before, "edge" if ends else sides.after)
        parts = parts_of(items, self._form)
        parts = [self._anything, *parts] if sides.before == "open" else parts
        parts = [*parts, self._anything] if sides.after == "open" else parts
        return [one for known in self._without_turns(parts, sides) for one in self._joined(known, sides)]

    def _without_turns(self, parts: list[Part], sides: _Sides) -> list[list[Chunk | Look]]:
        """Return the alternatives of parts in which look-ahead stands outside of repetitions."""
        places = [number for number, part in enumerate(parts) if isinstance(part, Turns)]
        rest = [part for part in parts[max(places, default=-1) + 1 :] if not isinstance(part, Turns)]
        if not places:
            return [rest]
        if sides.after in {"inside", "text"}:
            raise Untranslatable("look-ahead inside of look-behind")
        turns = parts[places[-1]]
        assert isinstance(turns, Turns)
        found = self._of_turns(turns, rest)
        return [known for way in found for known in self._without_turns([*parts[: places[-1]], *way], sides)]

    def _of_turns(self, turns: Turns, rest: list[Chunk | Look]) -> list[list[Part]]:
        """Return the alternatives of turns and of what follows them."""
        self._unfolding.step()
        each, _ = width(turns.ways[0])
        if rest == [self._anything]:  # the fewest turns are enough
            return self._written_out(turns, rest)
        turn = self._language(turns.ways, _Sides("inside", "open"))
        low, high = width_of(rest)
        if low == high:  # so there is one place where the turns can end, and none where a turn cannot begin
            wrong = characters(self._form, each, 0, math.inf) + self._longer(low, turn)
            text = characters(self._form, each, turns.fewest, turns.most)
            chunk = Chunk(text, each * turns.fewest, longest_of(turns, each))
            return [[Look(is_ahead=True, holds=False, inside=wrong), chunk, *rest]]
        if each != 1 or not all(map(self._is_decided_by_next, turns.ways)):
            raise Untranslatable("look-ahead in a repetition whose end is not known")
        fewest = max(turns.fewest, 1)
        text = all_of(characters(self._form, 1, fewest, turns.most), none=[self._any + self._longer(1, turn)])
        found: list[list[Part]] = [] if turns.fewest else [[*rest]]
        for way in turns.ways:
            last, *looks = parts_of(way, self._form)
            assert isinstance(last, Chunk)
            chunk = Chunk(all_of(text, self._any + last.text), fewest, longest_of(turns, 1))
            found.append([chunk, *looks, *rest])
        return found

    def _longer(self, length: int, turn: Expression) -> Expression:
        """Return the texts of more characters that do not begin with a turn."""
        return all_of(characters(self._form, 1, length + 1, math.inf), none=[turn])

    def _written_out(self, turns: Turns, rest: list[Chunk | Look]) -> list[list[Part]]:
        if turns.fewest > _MAX_TURNS:
            raise Untranslatable("look-ahead in a repetition that no end follows")
        found: list[list[Part]] = [[*rest]]
        for _ in range(turns.fewest):
            self._unfolding.step(len(found) * len(turns.ways))
            found = [[*parts_of(turn, self._form), *way] for turn in turns.ways for way in found]
        return found

    def _is_decided_by_next(self, turn: list[Item]) -> bool:
        """Return True for one character, and then look-ahead at no more than the next one."""
        return all(item[0] in LOOKS for item in turn[1:]) and all(
            item[1][0] > 0 and all(map(is_short, self._unfolding.ways(item[1][1]))) for item in turn[1:]
        )

    def _joined(self, parts: list[Chunk | Look], sides: _Sides) -> list[Expression]:
        """Return the alternatives of parts in a row."""
        self._unfolding.step()
        parts = with_behind_first(parts)
        for number, part in enumerate(parts):
            if isinstance(part, Look) and not sides.seen_by(part):
                return self._looking_beside(parts, number, sides)
        for number, part in enumerate(parts):
            if isinstance(part, Look) and has_far_anchor(part):
                beside = range(number) if part.is_ahead else range(number + 1, len(parts))
                least, most = width_of([parts[place] for place in beside])
                if most and not least:
                    return self._empty_or_not(parts, beside, sides)
        kept, whole, absent = parts, list[Expression](), list[Expression]()
        if overlap(parts):  # where the distance to an end is known, a look can be one at the whole text
            kept = []
            for number, part in enumerate(parts):
                found = self._of_whole(part, parts, number, sides) if isinstance(part, Look) else None
                if not isinstance(part, Look) or not found:
                    kept.append(part)
                else:
                    (whole if part.holds else absent).append(found)
        problem = Untranslatable(_SAME_TEXT)
        for look in (both := overlap(kept)):
            try:
                return self._looking_beside(parts, parts.index(look), sides)
            except Untranslatable as error:
                problem = error
        if both:
            raise problem
        return [all_of(self._nested(kept, sides), *whole, none=absent)]

    def _nested(self, parts: list[Chunk | Look], sides: _Sides) -> Expression:
        """Return parts in which all look-behind comes before all look-ahead."""
        behind = [number for number, part in enumerate(parts) if isinstance(part, Look) and not part.is_ahead]
        middle = max(behind, default=-1) + 1
        front = back = EMPTY
        for number, part in enumerate(parts[:middle]):
            seen = part.text if isinstance(part, Chunk) else self._seen(part, parts, number, sides)
            front = front + seen if isinstance(part, Chunk) else self._met(front, part, seen)
        for number, part in reversed([*enumerate(parts)][middle:]):
            seen = part.text if isinstance(part, Chunk) else self._seen(part, parts, number, sides)
            back = seen + back if isinstance(part, Chunk) else self._met(back, part, seen)
        return front + back

    def _met(self, text: Expression, look: Look, seen: Expression) -> Expression:
        if not look.holds:
            return all_of(text, none=[seen])
        return seen if text == self._any else all_of(text, seen)

    def _seen(self, look: Look, parts: list[Chunk | Look], number: int, sides: _Sides) -> Expression:
        """Return all texts on the side of a look that it finds, or must not find."""
        if isinstance(look.inside, Expression):
            return look.inside
        ways = self._unfolding.ways(look.inside)
        if look.is_ahead:
            return self._language(ways, _Sides(_side(sides.before, parts[:number]), "open"))
        return self._language(ways, _Sides("open", _side(sides.after, parts[number + 1 :])))

    def _of_whole(self, look: Look, parts: list[Chunk | Look], number: int, sides: _Sides) -> Expression | None:
        """Return the whole texts in which a look finds something; None if it may be at several places."""
        front, back = width_of(parts[:number]), width_of(parts[number + 1 :])
        if front[0] < front[1] and back[0] < back[1]:
            return None
        seen = self._seen(look, parts, number, sides)
        if front[0] == front[1]:
            text = characters(self._form, 1, *front)
            return text + seen if look.is_ahead else all_of(text, seen) + self._any
        text = characters(self._form, 1, *back)
        return self._any + all_of(text, seen) if look.is_ahead else seen + text

    def _empty_or_not(self, parts: list[Chunk | Look], places: range, sides: _Sides) -> list[Expression]:
        """Return the alternatives of parts in which one of these texts, which may all be empty, is, or is not."""
        place = next(place for place in places if isinstance(parts[place], Chunk))
        chunk = parts[place]
        assert isinstance(chunk, Chunk)
        some = characters(self._form, 1, 1, math.inf)
        filled = Chunk(some if chunk.text == self._any else all_of(chunk.text, some), 1, chunk.most)
        ways = [parts[:place] + parts[place + 1 :], [*parts[:place], filled, *parts[place + 1 :]]]
        return [one for way in ways for one in self._joined(way, sides)]

    def _looking_beside(self, parts: list[Chunk | Look], number: int, sides: _Sides) -> list[Expression]:
        """Return the alternatives of parts whose n-th is a look at characters of the next chunk only."""
        look = parts[number]
        assert isinstance(look, Look)
        if isinstance(look.inside, Expression) or any(item[0] in (*LOOKS, sre.AT) for item in walk(look.inside)):
            raise Untranslatable(_SAME_TEXT)
        least, most = width(look.inside)
        order = range(number + 1, len(parts)) if look.is_ahead else range(number - 1, -1, -1)
        place = next((place for place in order if isinstance(parts[place], Chunk)), None)
        if place is None:
            if not sides.seen_by(look):
                raise Untranslatable("look-around that looks beyond other look-around")
            without = [part for other, part in enumerate(parts) if other != number]
            return self._joined(without, sides) if look.holds == (not least) else []
        chunk = parts[place]
        assert isinstance(chunk, Chunk)
        if most > max(chunk.least, 1):
            raise Untranslatable(_SAME_TEXT)
        inside = Expression(plain(look.inside, self._form))
        text = self._met(chunk.text, look, inside + self._any if look.is_ahead else self._any + inside)
        found: list[Expression] = []
        if chunk.least < most:  # the chunk may be empty
            text = all_of(text, characters(self._form, 1, 1, math.inf))
            found = self._joined([part for other, part in enumerate(parts) if other != place], sides)
        beside = Chunk(text, max(chunk.least, int(most)), chunk.most)
        new = [beside if other == place else part for other, part in enumerate(parts) if other != number]
        return found + self._joined(new, sides)


def _side(beyond: _Side, parts: list[Chunk | Look]) -> _Side:
    """Return the text on one side of a look: these parts, and what is beyond them."""
    least, most = width_of(parts)
    if least or beyond == "text":
        return "text"
    return "inside" if most or beyond == "inside" else "edge"
