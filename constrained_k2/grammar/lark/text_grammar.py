r"""Builds automata of a client's Lark or regex grammar, with the shortest ending from each state.

    start: "(" start* ")" | /[a-z]+/ ";"        shortest text: () (2 characters); completion of ((ab: ;)) (3)

Each rule is an NFA over terminals and rules. A slot is one of its states: a position between two parts of the rule's
body. For each slot, the length of the shortest text from there to the rule's end is computed by Knuth's generalization
of Dijkstra's algorithm.
"""

from collections import defaultdict
from contextlib import suppress
from heapq import heappop, heappush
from math import inf
from typing import Any, Literal, NamedTuple

from lark import Token

from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema
from constrained_k2.grammar.lark.definition import Definition, repeat_counts
from constrained_k2.grammar.patterns.characters import Ranges, Untranslatable
from constrained_k2.grammar.patterns.completions import liked, shortest_suffix
from constrained_k2.grammar.patterns.rust import parse_rust
from constrained_k2.grammar.patterns.states import PatternStates, TooManyStates
from constrained_k2.grammar.patterns.tree import Items, width
from constrained_k2.grammar.patterns.unfolding import END, START
from constrained_k2.grammar.spelling import TOP

_MAX_SLOTS, _MAX_TERMINALS = 1 << 13, 256
_MAX_SUFFIX = 128  # sets of terms that the search for a lexeme's suffix visits: a third of a millisecond
_MAX_RANGES, _MAX_CHARACTERS = 4, 16  # ranges tried per transition, characters tried per DFA state
_MAX_KNOWN = 1 << 12  # cached steps of a terminal
_END = (-1, None, -1)  # no further part
_KNOWN_BYTES, _SLOT_BYTES = 150, 600  # estimates


class Moves(NamedTuple):
    """The parts of a body that may follow a slot."""

    terminals: tuple[tuple[int, int], ...]  # (number of the terminal, slot after it)
    rules: tuple[tuple[int, int], ...]  # (first slot of the rule, slot after the rule)
    ends: bool  # True if the body may end here

    @property
    def only_ends(self) -> bool:
        """True if only the end of the rule may follow."""
        return self.ends and not self.terminals and not self.rules


class Terminal:
    """A terminal as a lazily built DFA over characters, whose states are ints. At a limit of states it rejects."""

    def __init__(self, items: Items) -> None:
        self.items = items
        self.shortest = width(items)[0]  # characters of its shortest lexeme
        self.is_used_up = False  # True if the limit of states was reached
        self._states = PatternStates([START, *items, END], is_metered=False)
        self.start = self._states.start  # the state before the first character
        self._after: dict[tuple[int, str], int | None] = {}
        self._may_end: dict[int, bool] = {}
        self._suffixes: dict[int, str | None] = {}
        self._characters: dict[int, tuple[str, ...]] = {}

    @property
    def cost_bytes(self) -> int:
        """Estimated size."""
        return self._states.cost_bytes + _KNOWN_BYTES * (len(self._after) + len(self._suffixes))

    def after(self, state: int, character: str) -> int | None:
        """Return the state after one more character; None if no lexeme has this prefix."""
        known = (state, character)
        if known not in self._after:
            if len(self._after) >= _MAX_KNOWN:
                self._after.clear()
            try:
                after = self._states.after(state, character)
            except TooManyStates:
                self.is_used_up = True
                return None
            except Untranslatable:
                return None
            self._after[known] = None if self._states.is_decided(after) is False else after
        return self._after[known]

    def may_end(self, state: int) -> bool:
        """Return True if a lexeme may end in this state."""
        if state not in self._may_end:
            self._may_end[state] = False
            with suppress(TooManyStates, Untranslatable):
                self._may_end[state] = any(map(self._states.may_end, self._states.terms(state)))
        return self._may_end[state]

    def suffix(self, state: int) -> str | None:
        """Return the shortest suffix that completes a lexeme; None if none is found within a limit."""
        if state not in self._suffixes:
            self._suffixes[state] = None
            with suppress(TooManyStates, Untranslatable):
                self._suffixes[state] = shortest_suffix([(self._states, state)], max_places=_MAX_SUFFIX)
        return self._suffixes[state]

    def characters(self, state: int) -> tuple[str, ...]:
        """Return characters worth trying next: per transition, one in its ranges, and their half-open bounds."""
        if state not in self._characters:
            several = list[Ranges]()
            with suppress(TooManyStates, Untranslatable):
                several = [ranges for term in self._states.terms(state) for ranges, _ in self._states.moves(term)]
            found = dict.fromkeys(liked(ranges) for ranges in several if ranges)
            ends = [ends for ranges in several for ends in ranges[:_MAX_RANGES]]
            found |= dict.fromkeys(chr(code) for low, high in ends for code in (low, high + 1) if code <= TOP)
            self._characters[state] = tuple(found)[:_MAX_CHARACTERS]
        return self._characters[state]


class TextGrammar:
    """The automata of one grammar, and the shortest text from each slot. Shared by all turns and thread-safe.

    Attributes:
        terminals: The terminals by number. A text keeps using the list that it began with (:meth:`renew`).
        lengths: By slot: the length in characters of the shortest text to the rule's end; infinity if there is none.
        start: The slot before the whole text.
    """

    def __init__(self, builder: "_Builder") -> None:
        self.terminals = builder.terminals
        self.start = builder.start
        self._empty, self._steps, self._calls = builder.empty, builder.steps, builder.calls
        self._ends = builder.ends
        self._moves: dict[int, Moves] = {}
        self.lengths: list[float] = [inf] * builder.count
        self._shortest: dict[int, tuple[int, int | None, int]] = {}  # slot -> (terminal, rule, next slot)
        self._measure()

    @property
    def cost_bytes(self) -> int:
        """Estimated size."""
        return _SLOT_BYTES * len(self.lengths) + sum(terminal.cost_bytes for terminal in self.terminals)

    def renew(self) -> None:
        """Replace the terminals that reached the limit of states, for later texts."""
        if any(terminal.is_used_up for terminal in self.terminals):
            self.terminals = [Terminal(each.items) if each.is_used_up else each for each in self.terminals]

    def moves(self, slot: int) -> Moves:
        """Return the parts that may follow a slot, without parts that cannot be completed."""
        found = self._moves.get(slot)
        if found is None:
            waiting, seen = [slot], {slot}
            terminals, rules = dict[tuple[int, int], None](), dict[tuple[int, int], None]()
            while waiting:
                at = waiting.pop()
                more = list(self._empty[at])
                for terminal, to in self._steps[at]:
                    terminals[terminal, to] = None
                    more += [to] * (not self.terminals[terminal].shortest)
                rules |= dict.fromkeys(self._calls[at])
                waiting += (to for to in dict.fromkeys(more) if to not in seen)
                seen.update(more)
            found = self._moves[slot] = Moves(
                tuple(each for each in terminals if self.lengths[each[1]] < inf),
                tuple(each for each in rules if self.lengths[each[0]] + self.lengths[each[1]] < inf),
                not self._ends.isdisjoint(seen),
            )
        return found

    def shortest(self, slot: int, limit: int) -> str:
        """Return the shortest text from a slot to its rule's end, cut after the lexeme that reaches ``limit``.

        It is also cut before a lexeme whose text is not found within a limit.
        """
        text, waiting = "", [slot]
        while waiting and len(text) < limit:
            slot = waiting.pop()
            if not self.lengths[slot]:
                continue
            terminal, rule, behind = self._shortest[slot]
            waiting.append(behind)
            if rule is not None:
                waiting.append(rule)
            else:
                lexeme = self._lexeme(terminal)
                if lexeme is None:
                    break
                text += lexeme
        return text

    def _lexeme(self, number: int) -> str | None:
        terminal = self.terminals[number]
        return terminal.suffix(terminal.start)

    def _measure(self) -> None:
        before: dict[int, list[tuple[int, int, int | None, int]]] = defaultdict(list)
        for slot in range(len(self.lengths)):
            for to in self._empty[slot]:
                before[to].append((slot, -1, None, to))
            for terminal, to in self._steps[slot]:
                before[to].append((slot, terminal, None, to))
            for called, to in self._calls[slot]:
                before[to].append((slot, -1, called, to))
                before[called].append((slot, -1, called, to))
        done = set[int]()
        waiting: list[tuple[float, int]] = [(0, slot) for slot in self._ends]
        for slot in self._ends:
            self.lengths[slot] = 0
        while waiting:
            _, slot = heappop(waiting)
            if slot in done:
                continue
            done.add(slot)
            for earlier, terminal, rule, to in before[slot]:
                whole = self.lengths[to] + (self.terminals[terminal].shortest if terminal >= 0 else 0)
                whole += 0 if rule is None else self.lengths[rule] if {rule, to} <= done else inf
                is_empty = terminal < 0 and rule is None
                each = self._shortest.get(to, _END) if is_empty else (terminal, rule, to)
                if whole < self.lengths[earlier]:
                    self.lengths[earlier], self._shortest[earlier] = whole, each
                    heappush(waiting, (whole, earlier))


def text_grammar(kind: Literal["regex", "lark"], text: str) -> TextGrammar | None:
    """Return the automata of a client's grammar; None if the grammar is too large, or has an unsupported part."""
    try:
        return TextGrammar(_Builder(kind, text))
    except (UnsupportedSchema, SchemaTooCostly, Untranslatable, TooManyStates, RecursionError, KeyError):
        return None


class _Builder:
    """Builds the automata of ``start`` and of the rules that it refers to."""

    def __init__(self, kind: Literal["regex", "lark"], text: str) -> None:
        self.terminals: list[Terminal] = []
        self.empty: list[list[int]] = []  # slot -> next slots, by empty transitions
        self.steps: list[list[tuple[int, int]]] = []  # slot -> (terminal, slot after it)
        self.calls: list[list[tuple[int, int]]] = []  # slot -> (first slot of a rule, slot after the rule)
        self.ends: set[int] = set()
        self._numbers: dict[str, int] = {}  # terminal's text -> its number
        self._ignored: list[int] = []
        self._first: dict[str, int] = {}  # rule -> its first slot
        self._names: list[str] = []
        self.start = self._slot()
        end = self._slot()
        self.ends.add(end)
        if kind == "regex":
            self.terminals.append(Terminal(parse_rust(text, is_whole=True, may_be_lazy=True)))
            self.steps[self.start].append((0, end))
            return
        self._definition = Definition(text)
        self._ignored = [self._terminal(tree) for tree in self._definition.ignored]
        self.steps[self.start] += [(number, self.start) for number in self._ignored]
        self.calls[self.start].append((self._rule("start"), end))
        for name in self._names:  # grows meanwhile
            last = self._slot()
            self.ends.add(last)
            self._expression(self._definition.rules[name], self._first[name], last)

    @property
    def count(self) -> int:
        """The number of slots."""
        return len(self.empty)

    def _slot(self) -> int:
        if self.count >= _MAX_SLOTS:
            raise TooManyStates
        self.empty.append([])
        self.steps.append([])
        self.calls.append([])
        return self.count - 1

    def _rule(self, name: str) -> int:
        if name not in self._first:
            self._first[name] = self._slot()
            self._names.append(name)
        return self._first[name]

    def _terminal(self, node: Any) -> int:
        text = " ".join(map(str, node.children))
        if text not in self._numbers:
            if len(self.terminals) >= _MAX_TERMINALS:
                raise TooManyStates
            self._numbers[text] = len(self.terminals)
            self.terminals.append(Terminal(self._definition.items_of(node)))
        return self._numbers[text]

    def _expression(self, node: Any, first: int, last: int) -> None:
        """Add the transitions of a part of a rule's body, from slot ``first`` to slot ``last``."""
        match node.data, node.children:
            case ("expansions", alternatives):
                for each in alternatives:
                    self._expression(each, first, last)
            case ("expansion", parts):
                for part in parts:
                    after = self._slot()
                    self._expression(part, first, after)
                    first = after
                self.empty[first].append(last)
            case ("alias", [inner, _]):
                self._expression(inner, first, last)
            case ("expr", [inner, *given]) if given[0]:
                self._repetition(inner, *repeat_counts(given), first, last)
            case ("expr", [inner, *_]):
                self._expression(inner, first, last)
            case ("maybe", [inner]):
                self._repetition(inner, 0, 1, first, last)
            case ("name", [Token(type="RULE", value=name)]):
                self.calls[first].append((self._rule(name), last))
            case _:
                after = self._slot()
                self.steps[first].append((self._terminal(node), after))
                self.steps[after] += [(number, after) for number in self._ignored]
                self.empty[after].append(last)

    def _repetition(self, inner: Any, least: int, most: int | None, first: int, last: int) -> None:
        for _ in range(least):
            after = self._slot()
            self._expression(inner, first, after)
            first = after
        if most is None:
            again, after = self._slot(), self._slot()
            self.empty[first].append(again)
            self._expression(inner, again, after)
            self.empty[after].append(again)
            first = again
        for _ in range(0 if most is None else most - least):
            self.empty[first].append(last)
            after = self._slot()
            self._expression(inner, first, after)
            first = after
        self.empty[first].append(last)
