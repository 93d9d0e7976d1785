r"""Incrementally parses text by a client's grammar; finds short suffixes that complete the text.

    start: "(" start* ")" | /[a-z]+/ ";"        ((ab is inside /[a-z]+/, in three nested rules; its completion is ;))

A *reading* is one parse of the text so far: its current terminal, and the stack of its open rules. All readings share
one graph-structured stack, as in GLL parsers. As in LLGuidance, a lexeme ends only before a character that no active
terminal accepts. Inside JSON it may also end before or after an escaped character
(:mod:`constrained_k2.grammar.patterns.runs`).
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from heapq import heapify, heappop, heappush, nsmallest
from itertools import count
from math import inf
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from constrained_k2.grammar.lark.text_grammar import Terminal, TextGrammar

_MAX_READINGS = 64  # per parser state
_MAX_CREDIT, _CREDIT = 20_000, 64  # steps: the most that a text may save up, and what each character adds (50 us)
_MAX_MEASURED = 8  # readings whose completions are compared
_MAX_COMPLETIONS = 8
_MAX_CHECKED = 256  # readings that the characters of one completion are checked with
_MAX_TRIED, _MAX_CHARACTERS = 256, 32  # readings that a search tries in all, and characters after one state
_LIKELY = 24  # characters of a completion that are computed: few tokens are longer


class _Caller:
    """An open rule: a node of the graph-structured stack.

    Attributes:
        rule: The rule's first slot.
        continuations: The slots where the text may continue after the rule, each with the open rule that contains it.
        length: Characters of the shortest text from this rule's end to the end of the whole text.
        behind: The first slot on the way to that end that needs more text, with its open rule; None if no slot does.
        depth: The number of slots on the way to that end that need more text.
    """

    __slots__ = ("__weakref__", "behind", "continuations", "depth", "length", "rule")

    def __init__(self, rule: int) -> None:
        self.rule = rule
        self.continuations: dict[tuple[int, _Caller], None] = {}
        self.length: float = inf
        self.behind: tuple[int, _Caller] | None = None
        self.depth = 0


_Reading = tuple[int, int, int, _Caller]  # a terminal, its DFA state, the slot after it, its open rule
_Begun = tuple[int, int, _Caller]  # a terminal that may begin, the slot after it, its open rule
_Place = tuple[int, _Caller]  # a slot, and the open rule that contains it


class _Text(NamedTuple):
    """The grammar of a text, and the data that its parser states share."""

    grammar: TextGrammar
    terminals: list[Terminal]
    escaped: Container[str]
    callers: WeakValueDictionary[Any, _Caller]  # interned, by their rule and continuations


def begun_text(grammar: TextGrammar, escaped: Container[str] = ()) -> "TextState":
    """Return the parser state before the first character. ``escaped``: the characters that are written as escapes."""
    grammar.renew()
    root = _Caller(-1)
    root.length = 0
    return TextState(
        _Text(grammar, grammar.terminals, escaped, WeakValueDictionary()),
        (),
        ((grammar.start, root),),
        _MAX_CREDIT,
        was_escaped=False,
    )


class TextState:
    """A parser state: the readings of a text so far. Without readings, no completion is known."""

    __slots__ = ("_begun", "_credit", "_found", "_loops", "_places", "_text", "readings", "was_escaped")

    def __init__(
        self, text: _Text, readings: tuple[_Reading, ...], places: tuple[_Place, ...], credit: int, *, was_escaped: bool
    ) -> None:
        self.readings = readings
        self.was_escaped = was_escaped
        self._text = text
        self._places = places  # slots at which the text begins; empty after the first character
        self._credit = credit
        self._loops: set[str] = set()  # characters after which this state is unchanged
        self._begun: tuple[list[_Begun], int] | None = None
        self._found: list[tuple[float, str]] | None = None  # completions: (length, first characters)

    def after(self, text: str) -> "TextState":
        """Return the state after more characters."""
        state = self
        for character in text:
            state = state.step(character)
        return state

    def step(self, character: str) -> "TextState":
        """Return the state after one more character."""
        if character in self._loops:
            return self
        readings, work = self._readings_after(character)
        if not character.isascii():  # letters that Python's tables lack, or that fold to an ASCII letter
            for other in (character.casefold()[0], "a"):
                if not readings:
                    readings, more = self._readings_after(other)
                    work += more
        was_escaped = character in self._text.escaped
        if readings == self.readings and was_escaped == self.was_escaped and not self._places:
            self._loops.add(character)
            return self
        credit = min(self._credit + _CREDIT, _MAX_CREDIT) - work
        if credit < 0 or len(readings) > _MAX_READINGS:
            readings = ()
        return TextState(self._text, readings, (), credit, was_escaped=was_escaped)

    def completions(self) -> Iterator[tuple[str, bool]]:
        """Yield completions, the best first: (its first characters, True if these are the whole completion).

        A completion that is the shortest by the rules may be wrong, because the greedy lexer makes it part of the
        current lexeme. Such completions come last. If all are wrong, a short search looks for another one.
        """
        if self._found is None:
            self._found = self._shortest()
            if self._found and not self._is_right(self._found[0]):
                self._found.sort(key=lambda each: not self._is_right(each))
                if not self._is_right(self._found[0]):
                    self._found[:0] = self._searched()
        yield from ((text, len(text) == length) for length, text in self._found)

    @property
    def depth(self) -> int:
        """The number of open rules that need more text in the shortest completion."""
        found = min(self._measured(), key=lambda each: each[0], default=None)
        return 0 if found is None else found[2][1].depth

    @property
    def least(self) -> float:
        """The length in characters of the shortest completion by the rules; infinity if there is none."""
        return min((length for length, _, _ in self._measured()), default=inf)

    def _shortest(self) -> list[tuple[float, str]]:
        measured = (each for each in self._measured() if each[0] < inf)
        shortest = nsmallest(_MAX_COMPLETIONS, measured, key=lambda each: each[0])
        found = ((length, suffix + self._text_from(place, _LIKELY - len(suffix))) for length, suffix, place in shortest)
        return [each for each in found if each[1] or not each[0]]

    def _is_right(self, completion: tuple[float, str]) -> bool:
        """Return True if writing a completion's first characters shortens the shortest completion by their number."""
        length, text = completion
        text = text[: _MAX_CHECKED // max(len(self.readings), 1)]
        return self.after(text).least <= length - len(text)

    def _searched(self) -> list[tuple[float, str]]:
        """Search a completion by A*. The length of the shortest completion by the rules is the lower bound."""
        waiting: list[tuple[float, int, str, TextState]] = [(0, 0, "", self)]
        seen = {(self.readings, self.was_escaped)}
        tried = 0
        while waiting and tried < _MAX_TRIED:
            _, _, text, state = heappop(waiting)
            for character in state.characters():
                after = state.step(character)
                least = after.least
                tried += 1 + len(after.readings)
                if not least:
                    return [(len(text) + 1, text + character)]
                key = (after.readings, after.was_escaped)
                if least < inf and key not in seen:
                    seen.add(key)
                    heappush(waiting, (len(text) + 1 + least, len(seen), text + character, after))
        return []

    def characters(self) -> list[str]:
        """Return characters worth trying next."""
        terminals, found = self._text.terminals, dict[str, None]()
        for terminal, state, _, _ in self.readings:
            found |= dict.fromkeys(terminals[terminal].characters(state))
        for terminal, _, _ in self._next()[0]:
            found |= dict.fromkeys(terminals[terminal].characters(terminals[terminal].start))
        return [*found][:_MAX_CHARACTERS]

    def _readings_after(self, character: str) -> tuple[tuple[_Reading, ...], int]:
        """Return the readings after one more character, in an order that depends on the text alone, and the steps."""
        terminals = self._text.terminals
        readings, work = dict[_Reading, None](), len(self.readings)
        for terminal, state, behind, caller in self.readings:
            after = terminals[terminal].after(state, character)
            if after is not None:
                readings[terminal, after, behind, caller] = None
        if not readings or self.was_escaped or character in self._text.escaped:
            begun, steps = self._next()
            work += steps
            for terminal, behind, caller in begun:
                after = terminals[terminal].after(terminals[terminal].start, character)
                if after is not None:
                    readings[terminal, after, behind, caller] = None
        return tuple(readings), work

    def _next(self) -> tuple[list[_Begun], int]:
        """Return the terminals that may begin here, and the steps taken to find them."""
        if self._begun is None:
            self._begun = self._beginnings()
        return self._begun

    def _beginnings(self) -> tuple[list[_Begun], int]:
        grammar = self._text.grammar
        waiting: list[_Place] = [*self._places]
        waiting += (
            (behind, caller)
            for terminal, state, behind, caller in self.readings
            if self._text.terminals[terminal].may_end(state)
        )
        seen, ended, new = set(waiting), set[_Caller](), set[_Caller]()
        callees = dict[int, _Caller]()  # first slot of the rule -> open rule
        found, steps = dict[_Begun, None](), 0

        def go(places: Iterable[_Place]) -> None:
            waiting.extend(place for place in places if place not in seen)
            seen.update(places)

        while waiting:
            slot, caller = waiting.pop()
            moves = grammar.moves(slot)
            steps += 1 + len(moves.terminals) + len(moves.rules)
            if steps > self._credit:
                return [], steps
            found |= dict.fromkeys((terminal, behind, caller) for terminal, behind in moves.terminals)
            if moves.ends:
                ended.add(caller)
                go(list(caller.continuations))
            for rule, behind in moves.rules:
                callee = callees.get(rule)
                if callee is None:
                    callee = callees[rule] = _Caller(rule)
                    new.add(callee)
                    go([(rule, callee)])
                # Tail call: after the last part of a rule comes what follows that rule, so the stack does not grow.
                # A rule that calls itself last need not return to itself.
                continuations = [(behind, caller)]
                if grammar.moves(behind).only_ends and caller.continuations and caller not in new:
                    continuations = [
                        each for each in caller.continuations if each[1] is not caller or rule != caller.rule
                    ]
                callee.continuations |= dict.fromkeys(continuations)
                steps += len(continuations)
                if callee in ended:
                    go(continuations)
        known = self._interned(callees.values())
        self._measure([callee for callee in callees.values() if callee not in known])
        return list(dict.fromkeys((one, to, known.get(caller, caller)) for one, to, caller in found)), steps

    def _interned(self, callees: Iterable[_Caller]) -> dict[_Caller, _Caller]:
        """Intern new callers: return new -> known. So a list of equal parts adds no readings."""
        known, left = dict[_Caller, _Caller](), set(callees)
        for callee in callees:
            left.remove(callee)
            callee.continuations = {(to, known.get(caller, caller)): None for to, caller in callee.continuations}
            if any(caller in left for _, caller in callee.continuations):
                continue
            continuations = frozenset((to, None if caller is callee else caller) for to, caller in callee.continuations)
            found = self._text.callers.setdefault((callee.rule, continuations), callee)
            if found is not callee:
                known[callee] = found
        for callee in callees:
            callee.continuations = {(to, known.get(caller, caller)): None for to, caller in callee.continuations}
        return known

    def _measure(self, callees: Iterable[_Caller]) -> None:
        """Set length, behind and depth of new callers, which may refer to each other, by Dijkstra's algorithm."""
        lengths, number = self._text.grammar.lengths, count()
        behind_of = defaultdict[_Caller, list[tuple[_Caller, int]]](list)
        for callee in callees:
            for behind, caller in callee.continuations:
                behind_of[caller].append((callee, behind))
        waiting = [(caller.length, next(number), caller) for caller in behind_of if caller.length < inf]
        heapify(waiting)
        while waiting:
            length, _, caller = heappop(waiting)
            for callee, behind in behind_of[caller] if length == caller.length else ():
                whole = lengths[behind] + length
                if whole < callee.length:
                    callee.length = whole
                    callee.behind = (behind, caller) if lengths[behind] else caller.behind
                    callee.depth = caller.depth + 1 if lengths[behind] else caller.depth
                    heappush(waiting, (whole, next(number), callee))

    def _measured(self) -> Iterator[tuple[float, str, _Place]]:
        """Yield the readings' completions: (length, suffix of the current lexeme, slot and open rule after it)."""
        lengths = self._text.grammar.lengths
        for slot, caller in self._places:
            yield lengths[slot] + caller.length, "", (slot, caller)
        likely = nsmallest(_MAX_MEASURED, self.readings, key=lambda each: lengths[each[2]] + each[3].length)
        for terminal, state, slot, caller in likely:
            suffix = self._text.terminals[terminal].suffix(state)
            if suffix is not None:
                yield len(suffix) + lengths[slot] + caller.length, suffix, (slot, caller)

    def _text_from(self, place: _Place | None, limit: int) -> str:
        """Return the first characters, about ``limit``, of the shortest text from a slot to the end."""
        text = ""
        while place is not None and len(text) < limit:
            slot, caller = place
            text += self._text.grammar.shortest(slot, limit - len(text))
            place = caller.behind
        return text
