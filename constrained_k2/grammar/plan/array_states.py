"""Plans arrays with ``contains`` as a finite automaton that counts the matching items.

A state is the number of items so far and, for each ``contains`` clause, how many items satisfy it. Without
``maxContains``, a count stops at ``minContains``: from then on, the clause does not restrict items. States that lead to
no complete array are left out, so a comma is never a dead end.

{"contains": {"const": 1}}     s0: any s1 | 1 s2     s1: any s1 | 1 s2     s2: any s2 | "]"     (commas left out)
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from math import prod

from constrained_k2.grammar.plan.nodes import CountedItems, ItemState, Wider
from constrained_k2.grammar.plan.planning import Planning
from constrained_k2.schema.shapes import Array, Node, negated

_KEYWORDS = ("contains", "minContains", "maxContains")
_MAX_ALTERNATIVES = 4000  # max alternatives for the items of all states
_MAX_CONTAINS = 6
_State = tuple[int, tuple[int, ...]]
_Which = tuple[bool, ...]


def plan_counted(planning: Planning, shape: Array) -> CountedItems | Wider:
    """Plan the states of an array; return a wider shape if there would be too many."""
    states, without = _States(planning, shape), replace(shape, contains=frozenset())
    if len(states.wanted) > _MAX_CONTAINS or states.size > _MAX_ALTERNATIVES:
        return Wider(without, _KEYWORDS, "counting the matching items needs too many states")
    found = states.live()
    if not found:
        return Wider(without, _KEYWORDS, "no array that satisfies all contains together is known")
    numbers = {state: number for number, state in enumerate(found)}

    def following(after: dict[_State, list[Node]]) -> tuple[tuple[int, tuple[int, ...]], ...]:
        return tuple((numbers[state], tuple(map(planning.number, nodes))) for state, nodes in after.items())

    # States are sorted, and no item lowers the length or a count, so no item leads to an earlier state.
    return CountedItems(tuple(ItemState(states.is_complete(state), following(after)) for state, after in found.items()))


class _States:
    def __init__(self, planning: Planning, shape: Array) -> None:
        self._productivity = planning.productivity
        self._shape = shape
        self.wanted = shape.contains_clauses
        self._prefix, self._longest = planning.productivity.items(shape)
        self._length = max(len(self._prefix), shape.shortest, 1) if self._longest is None else self._longest
        self._caps = [fewest if most is None else most for _, fewest, most in self.wanted]
        self.size = (self._length + 1) * prod(cap + 1 for cap in self._caps) << len(self.wanted)

    def is_complete(self, state: _State) -> bool:
        length, counts = state
        enough = all(count >= fewest for count, (_, fewest, _) in zip(counts, self.wanted, strict=True))
        return enough and length >= self._shape.shortest

    def live(self) -> dict[_State, dict[_State, list[Node]]]:
        """Return the states that lead to a complete array, each with the items that may follow; the start is first."""
        start: _State = (0, (0,) * len(self.wanted))
        alternatives = [list(self._items(node)) for node in self._prefix]
        if self._longest is None or self._longest > len(self._prefix):
            alternatives.append(list(self._items(self._shape.rest)))
        after: dict[_State, dict[_State, list[Node]]] = {}
        before: dict[_State, list[_State]] = {}
        waiting = [start]
        while waiting:
            state = waiting.pop()
            if state in after:
                continue
            after[state] = self._after(state, alternatives)
            for following in after[state]:
                before.setdefault(following, []).append(state)
                waiting.append(following)
        live, waiting = set[_State](), list(filter(self.is_complete, after))
        while waiting:
            state = waiting.pop()
            if state not in live:
                live.add(state)
                waiting += before.get(state, [])
        if start not in live:
            return {}
        kept = sorted(live)
        return {state: {other: nodes for other, nodes in after[state].items() if other in live} for state in kept}

    def _after(self, state: _State, alternatives: list[list[tuple[_Which, Node]]]) -> dict[_State, list[Node]]:
        length, counts = state
        found: dict[_State, list[Node]] = {}
        if length == self._longest or not alternatives:
            return found
        for which, node in alternatives[min(length, len(alternatives) - 1)]:
            more = tuple(count + one for count, one in zip(counts, which, strict=True))
            # Past its cap a clause allows no more, or makes no difference: then another alternative includes this one.
            if all(count <= cap for count, cap in zip(more, self._caps, strict=True)):
                found.setdefault((min(length + 1, self._length), more), []).append(node)
        return found

    def _items(self, node: Node) -> Iterator[tuple[_Which, Node]]:
        """Yield the possible items of a node, each with the ``contains`` clauses that count it."""
        for which in product((False, True), repeat=len(self.wanted)):
            item = node.union(*self._demands(which))
            if self._productivity.analyze(item):
                yield which, item

    def _demands(self, which: _Which) -> Iterable[Node]:
        for counts, (matching, _, most) in zip(which, self.wanted, strict=True):
            if counts or most is not None:
                yield matching if counts else negated(matching)
