r"""Detects adjacent parts of a client's grammar between which a longest-match lexer can get stuck.

    start: /[^;]*/ "END"        no text: the first terminal also matches END
    start: /[^;]*/ ";"          "END;"

LLGuidance's lexer never backtracks: a call with the first grammar could never end, so the grammar is refused.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from lark import Token

from constrained_k2.grammar.lark.definition import Definition, repeat_counts
from constrained_k2.grammar.patterns.characters import Ranges, Untranslatable, common, complement
from constrained_k2.grammar.patterns.states import PatternStates, TooManyStates
from constrained_k2.grammar.patterns.tree import Items
from constrained_k2.grammar.patterns.unfolding import END, START
from constrained_k2.grammar.spelling import TOP, Spelling
from constrained_k2.threads.interruptible import check_deadline

_MAX_STEPS = 50_000  # max DFA transitions of one terminal
_ALL: Ranges = [(0, TOP)]
_MAX_AFTER = 64  # max bitsets of one part of a rule
# UTF-8: (first code point that takes 4, 3, 2 or 1 bytes, number of bits after the first byte)
_FIRST_BYTES = ((0x10000, 18), (0x800, 12), (0x80, 6), (0, 0))


class Ends(NamedTuple):
    """The characters that may begin or follow a text of a part of a rule, as bitsets over ranges of characters.

    ``after`` has one bitset for each terminal that may be the last in the part: the characters with which the terminal
    cannot continue. If optional parts may still follow it, these can add characters. A part that cannot be empty and
    has no first character matches no text.
    """

    may_be_empty: bool
    first: int  # characters that begin a text
    after: frozenset[int]  # for each last terminal, the characters with which the next terminal may begin


_EMPTY, _NO_TEXT = Ends(True, 0, frozenset()), Ends(False, 0, frozenset())  # noqa: FBT003 - by their order


class Blocked(NamedTuple):
    """Two adjacent parts of a rule: after some text of the left part, the greedy lexer never begins the right part."""

    rule: str
    left: str
    right: str


class LongestMatch:
    """Computes the :class:`Ends` of rules and of their parts, as a least fixed point.

    Args:
        definition: The client's grammar; its ignored terminals may follow each terminal.
        form: The spelling of texts. A terminal may always end before an escaped character
            (:mod:`constrained_k2.grammar.patterns.runs`).

    Attributes:
        alike: The characters that share their first UTF-8 byte with a character that may begin the next terminal, at
            points where a terminal may end or continue. The lexer reads bytes, so the first byte does not decide.
    """

    def __init__(self, definition: Definition, form: Spelling) -> None:
        self._rules, ignored = definition.rules, definition.ignored
        escaped = [(code, code) for code in form.escapes]
        found = {}
        for node in [*ignored, *_terminals(self._rules.values())]:
            check_deadline()
            name = text_of(node)
            if name not in found:
                found[name] = _ends_of(definition.items_of(node), escaped)
        # Bounds of the ranges: characters between two bounds begin the same terminals, so they share one bit.
        self._bounds = sorted({end for each in found.values() for low, high in each.first for end in (low, high + 1)})
        self._terminals = {
            name: Ends(
                each.may_be_empty, self._bits(each.first), frozenset([self._bits(each.after)][: len(each.first)])
            )
            for name, each in found.items()
        }
        begins = [one for each in found.values() for one in each.first]
        alike = [one for each in found.values() for one in each.alike]
        self.alike = [_with_first_bytes(*one) for one in common(alike, begins)]
        self._ends: dict[str, Ends] = defaultdict(lambda: _NO_TEXT)
        self._skipped = _EMPTY
        for node in ignored:
            self._skipped = _either(self._skipped, self._terminals[text_of(node)])
        is_changed = True
        while is_changed:
            check_deadline()
            is_changed = False
            for name, body in reversed([*self._rules.items()]):  # most rules refer to later rules
                ends = self._of(body)
                is_changed |= _merged(ends) != _merged(self._ends[name])  # the sets only grow
                self._ends[name] = ends

    def has_text(self, node: Any) -> bool:
        """Return True if some text matches a part of a rule."""
        return self._of(node) != _NO_TEXT

    def blocked(self) -> Blocked | None:
        """Return two adjacent parts between which some text cannot be completed; None if there are none.

        An alternative that matches no text at all does not count, unless no text matches the grammar.
        """
        is_counted = not self.has_text(self._rules["start"])
        for name, body in self._rules.items():
            for sequence in body.find_data("expansion"):
                so_far = _EMPTY
                for part, before in zip(sequence.children, [None, *sequence.children], strict=False):
                    ends = self._of(part)
                    joined = _sequence(so_far, ends)
                    if _is_trap(so_far, ends) and (is_counted or joined != _NO_TEXT):
                        return Blocked(name, text_of(before), text_of(part))
                    so_far = joined
            for counted in body.find_data("expr"):
                inner, *counts = counted.children
                if counts[0] is not None and repeat_counts(counts)[0] > 1 and _is_trap(*[self._of(inner)] * 2):
                    return Blocked(name, text_of(inner), text_of(inner))
        return None

    def _of(self, node: Any) -> Ends:
        match node.data, node.children:
            case ("expansions", alternatives):
                ends = _NO_TEXT
                for each in alternatives:
                    ends = _either(ends, self._of(each))
                return ends
            case ("expansion", parts):
                ends = _EMPTY
                for part in parts:
                    ends = _sequence(ends, self._of(part))
                return ends
            case ("alias", [inner, _]):
                return self._of(inner)
            case ("maybe", [inner]):
                return _either(_EMPTY, self._of(inner))
            case ("expr", [inner, *counts]):
                least, most = repeat_counts(counts) if counts[0] else (1, 1)
                ends = self._of(inner)
                if most is None or most > 1:
                    again = _sequence(ends, _either(_EMPTY, ends) if least < 2 else ends)
                    ends = _either(ends, again) if least < 2 else again
                return _EMPTY if most == 0 else _either(_EMPTY, ends) if least == 0 else ends
            case ("name", [Token(type="RULE", value=name)]):
                return self._ends[name]
        return _sequence(self._terminals[text_of(node)], self._skipped)

    def _bits(self, ranges: Ranges) -> int:
        bits = 0
        for low, high in ranges:
            begin, end = max(bisect_right(self._bounds, low) - 1, 0), bisect_left(self._bounds, high + 1)
            bits |= (1 << end) - (1 << begin)
        return bits


def text_of(node: Any) -> str:
    """Return a part of a rule, roughly as the client wrote it."""
    return " ".join(map(str, node.scan_values(lambda value: value is not None)))


def _terminals(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield the terminals in parts of rules."""
    waiting = [*nodes]
    while waiting:
        node = waiting.pop()
        match node.data, node.children:
            case ("expansions" | "expansion" | "maybe", parts):
                waiting += parts
            case ("alias" | "expr", [inner, *_]):
                waiting.append(inner)
            case ("name", [Token(type="RULE")]):
                pass
            case _:
                yield node


def _any_of(bitsets: Iterable[int]) -> int:
    return reduce(or_, bitsets, 0)


def _merged(ends: Ends) -> tuple[bool, int, int]:
    return ends.may_be_empty, ends.first, _any_of(ends.after)


def _some(bitsets: frozenset[int]) -> frozenset[int]:
    """Return the bitsets, or their union as a single bitset if they are too many."""
    return bitsets if len(bitsets) <= _MAX_AFTER else frozenset([_any_of(bitsets)])


def _either(one: Ends, other: Ends) -> Ends:
    return Ends(one.may_be_empty or other.may_be_empty, one.first | other.first, _some(one.after | other.after))


def _sequence(left: Ends, right: Ends) -> Ends:
    meets = bool(_any_of(left.after) & right.first)
    # Also if the left part may be empty: a text that begins with it could never end.
    if _NO_TEXT in {left, right} or (left.first and right.first and not right.may_be_empty and not meets):
        return _NO_TEXT
    first = (left.first if right.may_be_empty or meets else 0) | (right.first if left.may_be_empty else 0)
    after = right.after if left.may_be_empty or meets else frozenset[int]()
    if right.may_be_empty:
        behind = _any_of(right.after)
        after |= {one | (behind if one & right.first else 0) for one in left.after}
    return Ends(left.may_be_empty and right.may_be_empty, first, _some(after))


def _is_trap(left: Ends, right: Ends) -> bool:
    """Return True if some text of the left part cannot be followed by the right part, which must not be empty."""
    is_needed = bool(right.first) and not right.may_be_empty
    return is_needed and not all(after & right.first for after in left.after)


class _Reads(NamedTuple):
    """Characters that a terminal accepts, as ranges. See :class:`Ends`."""

    may_be_empty: bool
    first: Ranges
    after: Ranges
    alike: Ranges  # characters of ``after`` that share their first UTF-8 byte with a character accepted there


def _ends_of(items: Items, escaped: Ranges) -> _Reads:
    """Return what a terminal accepts. With too many DFA states, any character counts as ``after``."""
    may_be_empty, first, after, alike = True, _ALL, list(escaped), Ranges()
    try:
        states = PatternStates([START, *items, END])
        begin = frozenset(states.terms(states.start))
        may_be_empty = any(map(states.may_end, begin))
        first = [one for term in begin for ranges, _ in states.moves(term) for one in ranges]
        waiting, seen, steps = [(begin, False)], set[frozenset[int]](), 0
        classes = set[tuple[tuple[int, int], ...]]()  # characters accepted in states in which a lexeme may end
        while waiting:
            check_deadline()
            state, has_begun = waiting.pop()
            may_end = has_begun and any(map(states.may_end, state))
            taken: Ranges = []
            for low, high, following in _steps(states, state):
                steps += 1
                if following:
                    taken.append((low, high))
                if following and following not in seen:
                    seen.add(following)
                    waiting.append((following, True))
            if may_end and tuple(taken) not in classes:
                classes.add(tuple(taken))
                after += complement(taken)
                alike += common(complement(taken), [_with_first_bytes(low, high) for low, high in taken])
            if steps > _MAX_STEPS:
                return _Reads(may_be_empty, first, _ALL, alike)
    except (TooManyStates, Untranslatable):
        after = _ALL
    return _Reads(may_be_empty, first, after, alike)


def _with_first_bytes(low: int, high: int) -> tuple[int, int]:
    """Extend a range to all characters that share their first UTF-8 byte with a character in it."""
    return _same_first_byte(low)[0], _same_first_byte(high)[1]


def _same_first_byte(code: int) -> tuple[int, int]:
    """Return the range of all characters that share their first UTF-8 byte with the given character."""
    first, bits = next((first, bits) for first, bits in _FIRST_BYTES if code >= first)
    return max(code >> bits << bits, first), ((code >> bits) + 1 << bits) - 1


def _steps(states: PatternStates, state: frozenset[int]) -> Iterator[tuple[int, int, frozenset[int]]]:
    """Yield the transitions of a DFA state, which is a set of terms: each range of characters with the next state."""
    changes = defaultdict[int, list[tuple[int, int]]](list)
    for term in state:
        for ranges, following in states.moves(term):
            for low, high in ranges:
                changes[low].append((following, 1))
                changes[high + 1].append((following, -1))
    counts = defaultdict[int, int](int)
    low = 0
    for at in sorted(changes):
        if at > low:
            yield low, at - 1, frozenset(term for term, count in counts.items() if count)
        low = at
        for term, change in changes[at]:
            counts[term] += change
    if low <= TOP:
        yield low, TOP, frozenset()
