"""Lists, from a grammar's plan, the constants and types allowed for a value, and an object's keys.

property {"anyOf": [{"$ref": "#"}, {"type": "null"}]}     Null (4 characters), then the root's objects
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from math import inf
from threading import Lock

from constrained_k2.grammar.plan.nodes import (
    ANY_NODE,
    ANY_VALUE,
    CONTAINERS,
    Alternative,
    ArrayPlan,
    CountedItems,
    Extra,
    Member,
    NumberPlan,
    ObjectPlan,
    Plan,
    PlanNode,
    StringPlan,
    UnequalValues,
    kind_of_alternative,
)
from constrained_k2.schema.shapes import Boolean, ListedValue, Null, Number, kind_of, value_of
from constrained_k2.turn.completions.string_suffixes import suffixes_of_key
from constrained_k2.turn.cursors.json_cursor import spelled

_MAX_OTHERS = 32  # max alternatives of one node, besides its constants
_MAX_CONSTANTS = 256
_MAX_PASSES = 16  # max passes over nodes of unknown cost; a cost that is unknown after them counts as infinite
_PATTERN_LENGTH = 12  # assumed characters of a string with a pattern or a format
_MAX_STEPS = 64  # max items of an array with ``contains`` whose states are followed
_PLANS = 16


class _States:
    """The possible states of an array with ``contains`` after each number of items.

    Attributes:
        missing: State -> the fewest items after which the array may end.
    """

    def __init__(self, plan: CountedItems) -> None:
        self._plan = plan
        self._after = {0: [0]}
        self.missing = [0.0 if state.may_end else inf for state in plan.states]
        for at in reversed(range(len(self.missing))):
            alternatives = (1 + self.missing[after] for after, _ in plan.states[at].following)
            self.missing[at] = min(self.missing[at], min(alternatives, default=inf))

    def after(self, number: int) -> list[int]:
        """The states in which an array may be after ``number`` items."""
        number = min(number, _MAX_STEPS)
        if number not in self._after:
            before = self.after(number - 1)
            self._after[number] = sorted({after for at in before for after, _ in self._plan.states[at].following})
        return self._after[number]


class PlanValues:
    """The alternatives of a plan's nodes, ordered by cost: roughly the characters of the shortest value.

    Thread-safe: threads that write the same entry write equal values, and no entry is changed afterwards.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._costs = [inf] * len(plan.nodes)  # node -> characters of roughly its shortest value
        self._known: dict[int, list[Alternative]] = {}
        self._container_costs: dict[int, float] = {}  # id() of a container's plan -> cost, after the nodes' costs
        self._members: dict[int, dict[str, list[Member]]] = {}  # id() of an object's plan -> its members by key
        self._states: dict[int, _States] = {}  # id() of an array's plan -> its states
        waiting = [*reversed(range(len(plan.nodes)))]  # usually, a node comes before the nodes that refer to it
        for _ in range(_MAX_PASSES):
            for number in waiting:
                self._costs[number] = min(map(self._cost, _alternatives(plan.nodes, number)), default=inf)
            left = [number for number in waiting if self._costs[number] == inf]
            if len(left) in {0, len(waiting)}:
                break
            waiting = left

    def roots(self) -> list[Alternative]:
        """The alternatives of the whole text."""
        return self._of(self.plan.root)

    def items(self, one: Alternative, number: int) -> list[Alternative]:
        """The alternatives of an array's item ``number`` (from 0), starting with those that ``contains`` demands."""
        if isinstance(one, ListedValue):
            values = one.value
            return [value_of(value) for value in values[number : number + 1]] if isinstance(values, list) else []
        if isinstance(one, ArrayPlan):
            node = one.prefix[number] if number < len(one.prefix) else one.rest
            return [] if node is None else self._of(node)
        if isinstance(one, UnequalValues):
            return list(one.values)
        if isinstance(one, CountedItems):
            states = self._states_of(one).after(number)
            nodes = (node for at in states for _, nodes in one.states[at].following for node in nodes)
            return [*self.contained(one, number), *self._of_each(nodes)]
        return []

    def contained(self, one: Alternative, number: int) -> list[Alternative]:
        """The alternatives of item ``number`` by which an array comes closer to the items it must contain."""
        if not isinstance(one, CountedItems):
            return []
        states = self._states_of(one)
        missing = states.missing
        nodes = [
            node
            for at in sorted(states.after(number), key=lambda at: missing[at])
            for after, several in one.states[at].following
            if missing[after] < missing[at]
            for node in several
        ]
        return [found for found in self._of_each(nodes) if self.cost(found) < inf]

    def members(self, one: Alternative, key: str) -> list[Alternative]:
        """The alternatives of the value of an object's key."""
        if isinstance(one, ListedValue):
            members = one.value
            return [value_of(members[key])] if isinstance(members, dict) and key in members else []
        return self._of_each(self._nodes(one, key))

    def may_have(self, one: Alternative, key: str, text: str) -> bool:
        """True if an object may have a key with this value; ``text``: the value's JSON, empty if it is not known."""
        if not isinstance(one, ObjectPlan):
            return isinstance(one, ListedValue) and key in one.value
        nodes = self._nodes(one, key)
        return bool(nodes) and (not text or any(_may_be(found, text) for found in self._of_each(nodes)))

    def missing(self, one: Alternative, written: set[str]) -> list[str]:
        """The keys that an object must have and lacks; ``written``: the keys so far, as JSON without quotes."""
        if not isinstance(one, ObjectPlan):
            return [key for key in self.declared(one) if spelled(key) not in written]
        required = {member.key for member in _required(one)}
        keys = [key for key in one.order if key in required and spelled(key) not in written]
        first = one.tracked + one.slots
        for bit in range(first, first + one.wanted):
            listed = [key for extra in one.extras if extra.wanted >> bit & 1 for key in extra.listed]
            keys += [] if any(spelled(key) in written for key in listed) else listed[:1]
        return keys

    def declared(self, one: Alternative) -> list[str]:
        """The keys that an object declares, in the schema's order."""
        if isinstance(one, ListedValue) and one.value_kind == "object":
            return list(one.value)
        return list(one.order) if isinstance(one, ObjectPlan) else []

    @staticmethod
    def key_patterns(alternatives: Iterable[Alternative]) -> Iterable[tuple[str, ...]]:
        """The patterns of undeclared keys: a tuple has all patterns of one kind of key. Demanded keys come first."""
        extras = [extra for one in alternatives if isinstance(one, ObjectPlan) for extra in one.extras]
        extras.sort(key=lambda extra: not extra.wanted)
        return dict.fromkeys(group for extra in extras for group in extra.patterns)

    def cost(self, one: Alternative) -> float:
        """The characters of roughly the shortest value; infinite if unknown."""
        if not isinstance(one, CONTAINERS):
            return self._cost(one)
        found = self._container_costs.get(id(one))
        if found is None:
            found = self._container_costs[id(one)] = self._cost(one)
        return found

    def _cost(self, one: Alternative) -> float:
        """As :meth:`cost`, computed from the nodes' costs that are known so far."""
        match one:
            case ListedValue():
                return len(one.text)
            case Null() | Boolean():
                return 4
            case NumberPlan():
                return 1
            case StringPlan(shape=shape):
                return 2 + max(shape.shortest, _PATTERN_LENGTH * bool(shape.patterns or shape.formats))
            case ArrayPlan():
                given = one.prefix[: one.fewest]
                more = one.fewest - len(given)
                cost = 2 + sum(1 + self._costs[node] for node in given)
                return cost if not more or one.rest is None else cost + more * (1 + self._costs[one.rest])
            case UnequalValues():
                return 2 + sum(1 + length for length in sorted(len(value.text) for value in one.values)[: one.fewest])
            case CountedItems():
                return 2 + self._cost_of_items(one)
        required = {member.key: min(map(self._cost_of, self._by_key(one)[member.key])) for member in _required(one)}
        return 2 + sum(len(key) + 4 + cost for key, cost in required.items())

    def cost_of_member(self, one: Alternative, key: str) -> float:
        """As :meth:`cost`, for the value of a key."""
        if isinstance(one, ObjectPlan):
            return min((self._costs[node] for node in self._nodes(one, key)), default=inf)
        return min(map(self.cost, self.members(one, key)), default=inf)

    def _cost_of(self, member: Member) -> float:
        return self._costs[member.node]

    def _cost_of_items(self, one: CountedItems) -> float:
        """The characters of the cheapest path from the first state to a state in which the array may end."""
        costs = [0.0 if state.may_end else inf for state in one.states]
        for at in reversed(range(len(costs))):
            for after, nodes in one.states[at].following:
                costs[at] = min(costs[at], 1 + min(self._costs[node] for node in nodes) + costs[after])
        return costs[0]

    def _nodes(self, one: Alternative, key: str) -> list[int]:
        """The nodes of a key's value; demanded nodes come first."""
        if not isinstance(one, ObjectPlan):
            return []
        found: Sequence[Member | Extra] = self._by_key(one).get(key, ())
        if not found:
            matching = [
                extra for extra in one.extras if any(rest == "" for rest in suffixes_of_key(key, extra.patterns))
            ]
            free = [extra for extra in one.extras if not extra.patterns]
            found = matching or free or one.extras  # a pattern that has no states is not matched
        return list(dict.fromkeys(member.node for member in sorted(found, key=lambda member: not member.wanted)))

    def _states_of(self, one: CountedItems) -> _States:
        found = self._states.get(id(one))
        if found is None:
            found = self._states[id(one)] = _States(one)
        return found

    def _by_key(self, one: ObjectPlan) -> dict[str, list[Member]]:
        found = self._members.get(id(one))
        if found is None:
            found = {}
            for member in (*one.leading, *one.members):
                found.setdefault(member.key, []).append(member)
            self._members[id(one)] = found
        return found

    def _of_each(self, nodes: Iterable[int]) -> list[Alternative]:
        return [one for node in dict.fromkeys(nodes) for one in self._of(node)]

    def _of(self, number: int) -> list[Alternative]:
        found = self._known.get(number)
        if found is None:
            in_order = sorted(_alternatives(self.plan.nodes, number), key=self.cost)
            constants = [one for one in in_order if isinstance(one, ListedValue)][:_MAX_CONSTANTS]
            others = [one for one in in_order if not isinstance(one, ListedValue)][:_MAX_OTHERS]
            kept = set(map(id, (*constants, *others)))
            found = self._known[number] = [one for one in in_order if id(one) in kept]
        return found


def _alternatives(nodes: Sequence[PlanNode], number: int) -> list[Alternative]:
    """The alternatives of a node; for an XTML argument, the alternatives of all its types."""
    found = list(nodes[number].alternatives)
    for kind, part in nodes[number].parts:
        if part == ANY_VALUE:
            found += (one for one in ANY_NODE.alternatives if kind_of_alternative(one) == kind)
        else:
            found += nodes[part].alternatives
    return found


def _required(one: ObjectPlan) -> list[Member]:
    return [*one.leading, *(member for member in one.members if member.bit is not None and member.bit < one.required)]


def _may_be(one: Alternative, text: str) -> bool:
    """True if a scalar, as JSON, may match an alternative; also if its text was cut off."""
    try:
        value = json.loads(text)
    except ValueError:
        return True
    if isinstance(one, ListedValue):
        return value_of(value) == one
    if kind_of(value) != kind_of_alternative(one):
        return False
    if isinstance(one, Boolean):
        return value in one.values
    if isinstance(one, StringPlan):
        length, shape = len(value), one.shape
        fits = shape.shortest <= length and (shape.longest is None or length <= shape.longest)
        return fits and value not in shape.excluded
    return not isinstance(one, NumberPlan) or _is_within(one.shape, value)


def _is_within(shape: Number, value: float) -> bool:
    is_above = shape.low is None or value > shape.low or (value == shape.low and not shape.low_open)
    return is_above and (shape.high is None or value < shape.high or (value == shape.high and not shape.high_open))


_lock = Lock()
_plans: OrderedDict[int, PlanValues] = OrderedDict()


def values_of(plan: Plan) -> PlanValues:
    """The :class:`PlanValues` of a plan, cached for the latest plans."""
    with _lock:
        found = _plans.get(id(plan))
        if found is None or found.plan is not plan:
            found = _plans[id(plan)] = PlanValues(plan)
            while len(_plans) > _PLANS:
                _plans.popitem(last=False)
        return found
