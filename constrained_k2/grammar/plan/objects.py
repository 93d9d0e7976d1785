"""Plans the grammar of objects with keys in any order: a 64-bit rule parameter records the keys.

Witnesses, the members that a negation demands, have the last bits. If more than 64 keys are required, some of them
have no bit: they are written before all other keys, in the schema's order.

{"properties": {"a": {}}, "required": ["a"]}     members=(Member("a", 2, bit=0),) extras=(Extra(…, 0),) required=1
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from constrained_k2.grammar.plan.keys import Keys, undeclared_keys
from constrained_k2.grammar.plan.nodes import BITS, NEGATING, Extra, Member, ObjectPlan, Wider
from constrained_k2.grammar.plan.open_keys import has_endless_keys
from constrained_k2.grammar.plan.planning import Planning
from constrained_k2.grammar.productivity import MAX_COMBINED_PATTERNS, patterns_of_keys
from constrained_k2.grammar.spelling import ATTRIBUTE, JSON, Spelling
from constrained_k2.schema.shapes import ANY, NEVER, KeyMap, ListedValue, Node, Object, String, Witness, value_of


@dataclass(frozen=True, slots=True)
class _Bits:
    """The meaning of an object's bits: required keys, other keys, slots, and then witnesses."""

    required: int
    tracked: int  # keys with a bit, the required ones first
    slots: int  # bits for undeclared keys that count
    counted: int  # slots that count for minProperties
    room: int | None  # how many optional members fit
    wanted: tuple[Witness, ...]

    def mask(self, satisfied: frozenset[Witness]) -> int:
        """The bits of the given witnesses, as a mask."""
        return sum(1 << self._bit(one) for one in satisfied)

    def by_value(self, wanted: frozenset[Witness]) -> tuple[int, ...]:
        """The bits of the witnesses that have a condition on their value."""
        return tuple(self._bit(one) for one in self.wanted if one in wanted and one.value != ANY)

    def _bit(self, wanted: Witness) -> int:
        return self.tracked + self.slots + self.wanted.index(wanted)


@dataclass(frozen=True, slots=True)
class _Extra:
    """One alternative for members under undeclared keys."""

    keys: str
    node: Node
    satisfied: frozenset[Witness]  # the witnesses that such a member serves as
    fitting: frozenset[Witness]  # the witnesses that members under these keys may serve as
    is_hard: bool
    patterns: tuple[tuple[str, ...], ...]
    listed: tuple[str, ...]


def plan_object(planning: Planning, shape: Object) -> ObjectPlan | Wider:
    """Plan objects in JSON."""
    return _plan(planning, shape, planning.number, JSON)


def plan_arguments(planning: Planning, shape: Object | ListedValue) -> ObjectPlan | Wider:
    """Plan objects whose members are XTML arguments."""
    if isinstance(shape, ListedValue):
        shape = _with_members(planning, shape.value)
    return _plan(planning, shape, planning.argument, ATTRIBUTE)


def _with_members(planning: Planning, value: dict[str, object]) -> Object:
    """Return one object value as a shape, so that its members may come in any order."""
    planning.note_listed(value)
    nodes = {key: planning.normalizer.shapes_node((value_of(item),)) for key, item in value.items()}
    for node in nodes.values():
        planning.productivity.analyze(node)
    return Object(frozenset({KeyMap(tuple(nodes.items()), extra=NEVER)}), frozenset(value))


def _plan(planning: Planning, shape: Object, number: Callable[[Node], int], form: Spelling) -> ObjectPlan | Wider:
    leading = _leading(shape)
    if isinstance(leading, Wider):
        return leading
    if leading:
        planning.note(("required",), "narrowed", f"{len(leading)} of the keys come first, in the schema's order")
    productivity = planning.productivity
    keys = [key for key in productivity.possible_keys(shape) if key not in leading]
    extras = _extras(planning, shape, form)
    if isinstance(extras, Wider):
        return extras
    if shape.most == 0:
        return ObjectPlan()
    bits = _bits(planning, shape, keys, len(leading), has_extras=bool(extras))
    if isinstance(bits, Wider):
        return bits
    value_node = planning.normalizer.value_node
    members = list[Member]()
    for index, key in enumerate(keys):
        if index >= bits.required and bits.room == 0:
            break  # only required keys fit
        bit = index if index < bits.tracked else None
        alternatives = [
            each for each in productivity.named_alternatives(shape, key) if productivity.is_productive(each.node)
        ]
        members += [Member(key, number(each.node), bit, bits.mask(each.satisfied)) for each in alternatives]
    planned = ObjectPlan(
        tuple(Member(key, number(value_node(shape, key)), None) for key in leading),
        tuple(members),
        tuple(_planned(extra, bits, number) for extra in extras),
        bits.required,
        bits.tracked,
        bits.slots,
        bits.counted,
        bits.room,
        shape.fewest - len(leading) if shape.fewest > len(shape.required) else 0,
        len(bits.wanted),
        _told_by(planning, shape, bits, extras),
        _others(shape),
        _in_order(shape, [*leading, *keys]),
    )
    planning.has_open_keys |= planned.has_open_keys
    planning.member_count += planned.alternative_count
    return planned


def _planned(extra: _Extra, bits: _Bits, number: Callable[[Node], int]) -> Extra:
    # If a key repeats, its last value counts. So once a member serves as a witness by its value, all further members
    # under these keys must do so too.
    is_by_value = any(one.value != ANY for one in extra.satisfied)
    clear = () if is_by_value else bits.by_value(extra.fitting)
    return Extra(
        extra.keys, number(extra.node), bits.mask(extra.satisfied), clear, extra.is_hard, extra.patterns, extra.listed
    )


def _leading(shape: Object) -> list[str] | Wider:
    """Return the required keys that have no bit: they come first, in the order of the largest subschema."""
    count = len(shape.required) - (BITS - len(shape.wanted))
    if count <= 0:
        return []
    if shape.wanted:
        return Wider(replace(shape, wanted=frozenset()), NEGATING, "too many members are required")
    declared = ([name for name, _ in rules.named] for rules in shape.maps)
    longest = max(declared, key=lambda names: (len(names), names), default=[])
    order = {name: number for number, name in enumerate(longest)}
    return sorted(shape.required, key=lambda name: (order.get(name, len(order)), name))[:count]


def _extras(planning: Planning, shape: Object, form: Spelling) -> list[_Extra] | Wider:
    if len(patterns_of_keys(shape)) > MAX_COMBINED_PATTERNS:
        reason = f"with more than {MAX_COMBINED_PATTERNS} patterns, no key that matches several of them is written"
        planning.note(("patternProperties",), "narrowed", reason)
    extras: list[_Extra] = []
    for found, node in planning.productivity.extra_nodes(shape):
        alternatives = planning.productivity.extra_alternatives(shape, found, node)
        fitting = frozenset[Witness]().union(*(each.satisfied for each in alternatives))
        for each in alternatives:
            if planning.productivity.is_productive(each.node):
                named = replace(shape, names=each.names)
                keys = _keys(planning, named, found, form)
                if isinstance(keys, Wider):
                    return keys
                planning.has_long_texts |= keys.is_long
                if keys.expression:
                    is_hard = named.names != ANY or bool(patterns_of_keys(named))
                    groups = _groups(planning, named, found) if is_hard else ()
                    given = keys.expression, each.node, each.satisfied, fitting, is_hard, groups, keys.listed
                    extras.append(_Extra(*given))
        for one in fitting:
            if one.value != ANY:
                reason = (
                    "negated: of undeclared keys that may fail it, only such that do come after the first that does"
                )
                planning.normalizer.notes.add(one.pointer, "narrowed", reason)
    return extras


def _groups(planning: Planning, shape: Object, found: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Return groups of patterns, one for each alternative of ``propertyNames``: its patterns and ``found``."""
    names = () if shape.names == ANY else planning.normalizer.shapes(shape.names)
    several = [{*found, *name.patterns} for name in names if isinstance(name, String)] or [set(found)]
    return tuple(tuple(sorted(group)) for group in several if group)


def _keys(planning: Planning, shape: Object, found: tuple[str, ...], form: Spelling) -> Keys | Wider:
    """Return the keys that a shape does not name and that match exactly ``found``; a wider shape if none is exact."""
    named = planning.productivity.named_keys(shape)
    if planning.effort == "relaxed" and patterns_of_keys(shape):
        reason = "the patterns cost the engine too much"
    else:
        keys = undeclared_keys(planning.normalizer, planning.has_match, shape, found, named, form)
        if isinstance(keys, Keys):
            return keys
        reason = keys.reason
    values = tuple((name, planning.normalizer.value_node(shape, name)) for name in named)
    wider = replace(shape, maps=frozenset({KeyMap(values)}), names=ANY, wanted=frozenset())
    return Wider(wider, ("patternProperties", "additionalProperties", "propertyNames"), reason)


def _bits(planning: Planning, shape: Object, keys: list[str], leading: int, *, has_extras: bool) -> _Bits | Wider:
    """Return the layout of the bits; a wider shape if 64 bits do not suffice."""
    required, fewest = len(shape.required) - leading, shape.fewest - leading
    counts_few = fewest > required
    wanted = tuple(sorted(shape.wanted, key=lambda one: one.order))
    tracked = min(len(keys), BITS - len(wanted))  # keys without a bit may repeat; the last value counts
    if tracked < len(keys) and any(one.value != ANY for one in wanted):
        reason = f"more than {BITS} properties cannot be told apart"
        return Wider(replace(shape, wanted=frozenset()), NEGATING, reason)
    is_endless = counts_few and has_extras and has_endless_keys(planning, shape)
    slots = (fewest - required if is_endless else 1) if counts_few and has_extras else 0
    room = None
    if shape.most is not None:
        tracked = len(keys)
        room = (shape.most - leading if has_extras else min(shape.most - leading, tracked)) - required
        slots = room if has_extras else 0
    if (
        counts_few
        and has_extras
        and not is_endless
        and (fewest > tracked + 1 or (shape.most is not None and fewest > 1))
    ):
        reason = "undeclared keys cannot be counted: propertyNames and patterns may allow only finitely many"
        return Wider(replace(shape, fewest=0), ("minProperties",), reason)
    if tracked + slots + len(wanted) > BITS or (counts_few and fewest > tracked + slots):
        wider, keywords = replace(shape, fewest=0, most=None), ("minProperties", "maxProperties")
        return Wider(wider, keywords, f"more than {BITS} properties cannot be counted")
    if counts_few and tracked < len(keys):
        planning.note(("minProperties",), "narrowed", f"only the first {BITS} properties count")
    if counts_few and has_extras and not is_endless and fewest > required + 1:
        reason = "of undeclared keys, one counts: it is not known that there are always more of them"
        planning.note(("minProperties",), "narrowed", reason)
    return _Bits(required, tracked, slots, slots if is_endless else min(slots, 1), room, wanted)


def _told_by(planning: Planning, shape: Object, bits: _Bits, extras: list[_Extra]) -> Literal["bits", "keys", "more"]:
    """Return which facts distinguish the parser states of an object (see :class:`ObjectPlan`)."""
    if any(one.value != ANY or any(one in extra.satisfied for extra in extras) for one in bits.wanted):
        return "more"
    productivity = planning.productivity
    is_counted = bits.slots or bits.wanted or shape.most is not None or shape.fewest > len(shape.required)
    is_all = bits.required == len(shape.required) and bits.tracked >= len(productivity.named_keys(shape))
    # Also if a declared key is impossible (not in ``tracked``): undeclared keys do not include it.
    if is_counted or not is_all or len(extras) > 1 or shape.names != ANY or patterns_of_keys(shape):
        return "keys"
    return "bits"


def _in_order(shape: Object, keys: list[str]) -> tuple[str, ...]:
    """Return keys in the order of the schema; keys that its key maps do not name come last, sorted."""
    possible, named = set(keys), shape.in_order()
    known = [key for key in named if key in possible]
    return (*known, *sorted(possible.difference(named))) if len(known) < len(possible) else tuple(known)


def _others(shape: Object) -> tuple[String, ...]:
    """Return the shapes that distinguish undeclared keys."""
    if shape.names != ANY:
        return ()
    names = shape.required.union(*([name for name, _ in rules.named] for rules in shape.maps))
    patterns = sorted({pattern for rules in shape.maps for pattern, _ in rules.patterns})
    return String(excluded=names), *(String(patterns=frozenset({pattern})) for pattern in patterns)
