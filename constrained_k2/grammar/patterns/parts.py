"""The parts of a way through a pattern: texts, look-around between them, and repetitions whose turns look ahead.

a(?=b)[bc]          is      the text a, a look ahead at b, the text [bc]
"""

import math
import re._constants as sre  # type: ignore[import-not-found] # standard library, without stubs
from dataclasses import dataclass
from itertools import groupby

from constrained_k2.grammar.patterns.expression import Expression
from constrained_k2.grammar.patterns.tree import LOOKS, Item, Items, plain, walk, width
from constrained_k2.grammar.patterns.ways import EACH, END, START, without_anchors
from constrained_k2.grammar.spelling import Spelling


@dataclass(frozen=True, slots=True)
class Chunk:
    """Texts, and the fewest and the most characters of one."""

    text: Expression
    least: int
    most: float


@dataclass(frozen=True, slots=True)
class Look:
    """Look-around: items that are next to a place, or an expression of all of the text beyond it."""

    is_ahead: bool
    holds: bool
    inside: Items | Expression


@dataclass(frozen=True, slots=True)
class Turns:
    """A repetition; all ways of a turn have one length."""

    fewest: int
    most: int
    ways: list[list[Item]]


Part = Chunk | Look | Turns


def parts_of(items: list[Item], form: Spelling) -> list[Part]:
    """Return the parts of a way without anchors."""
    parts: list[Part] = []
    for is_text, run in groupby(items, lambda item: item[0] not in (*LOOKS, EACH)):
        found = list(run)
        if is_text:
            parts.append(Chunk(Expression(plain(found, form)), *width(found)))
            continue
        for operation, argument in found:
            if operation == EACH:
                parts.append(Turns(*argument))
            else:
                parts.append(Look(argument[0] > 0, operation is sre.ASSERT, argument[1]))
    return parts


def characters(form: Spelling, each: int, fewest: int, most: float) -> Expression:
    """Return texts by the number of their characters, in multiples of ``each``."""
    if not each or not most:
        return Expression("")
    one = form.character if each == 1 else f"(?:{form.character}{{{each}}})"
    return Expression(f"{one}{{{fewest},{'' if most >= sre.MAXREPEAT else int(most)}}}")


def width_of(parts: list[Chunk | Look]) -> tuple[int, float]:
    """Return the fewest and the most characters of parts in a row."""
    chunks = [part for part in parts if isinstance(part, Chunk)]
    return sum(chunk.least for chunk in chunks), sum(chunk.most for chunk in chunks)


def with_behind_first(parts: list[Chunk | Look]) -> list[Chunk | Look]:
    """Return the parts with look-behind in front of look-ahead where no text is between them."""
    ordered: list[Chunk | Look] = []
    for is_chunk, run in groupby(parts, lambda part: isinstance(part, Chunk)):
        beside = list(run)
        ordered += beside if is_chunk else sorted(beside, key=lambda part: isinstance(part, Look) and part.is_ahead)
    return ordered


def overlap(parts: list[Chunk | Look]) -> list[Look]:
    """Return a look-behind, and look-ahead at text that it looks at; nothing if there are none."""
    looks = [part for part in parts if isinstance(part, Look)]
    ahead = next((number for number, look in enumerate(looks) if look.is_ahead), len(looks))
    behind = [look for look in looks[ahead:] if not look.is_ahead]
    return [behind[0], looks[ahead]] if behind else []


def has_far_anchor(look: Look) -> bool:
    """Return True if look-ahead asks for the start of the text, or look-behind for its end."""
    anchor = START if look.is_ahead else END
    return not isinstance(look.inside, Expression) and any(item == anchor for item in walk(look.inside))


def longest_of(turns: Turns, each: int) -> float:
    """Return the most characters of all turns, if one has ``each``."""
    return math.inf if turns.most is sre.MAXREPEAT else each * turns.most


def is_short(way: list[Item]) -> bool:
    """Return True if a way through look-ahead looks at no more than the next character."""
    found = without_anchors(way)
    if found is None:
        return True
    starts, items, ends = found
    return not starts and not any(item[0] in (*LOOKS, EACH) for item in items) and width(items)[1] <= (not ends)
