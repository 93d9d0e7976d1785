"""Objects in any property order: the 64-bit parameter of one rule has a bit for each key that has been written.

o:     "{" ws o_f::0x0
o_f::_ : "}" %if COMPLETE | o_kv::_                                    the first member, or the end
o_kv::_: KEY_A ws ":" ws VALUE_A ws o_r::set_bit(0) %if bit_clear(0) | …   one member; sets its bit
o_r::_ : "}" %if COMPLETE | "," ws o_kv::_                             another member, or the end

Members that an object must have by the negation of a subschema take the bits after those of the keys. Of more than 64
required keys, the first ones have no bit: they are written before the others, in the schema's order.

Arguments in XTML (:mod:`~constrained_k2.grammar.lark.arguments`) have the same rules in another form.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from constrained_k2.grammar.lark.open_keys import has_endless_keys
from constrained_k2.grammar.lark.terminals import (
    BITS,
    NEGATING,
    NoExactGrammar,
    count_at_least,
    count_below,
    key,
    only_if,
)
from constrained_k2.grammar.productivity import MAX_COMBINED_PATTERNS
from constrained_k2.grammar.spelling import JSON
from constrained_k2.schema.shapes import ANY, Node, Object, Wanted

if TYPE_CHECKING:
    from constrained_k2.grammar.lark.writer import LarkWriter


@dataclass(frozen=True, slots=True)
class ObjectForm:
    """The spelling of an object's ends, separators and members."""

    opening: str  # before the members
    comma: str  # between two members
    closing: str  # after the members
    empty: str  # an object without members
    head: str  # before a member's key
    extra_key: Callable[["LarkWriter", Object, tuple[str, ...]], str]  # as :meth:`LarkWriter.extra_key`
    members: Callable[["LarkWriter", str, Node], list[str]]  # all ways to write a member under a key
    extra_members: Callable[["LarkWriter", str, Node], list[str]]  # the same under the keys of a terminal


def _json_extra_key(writer: "LarkWriter", shape: Object, found: tuple[str, ...]) -> str:
    return writer.extra_key(shape, found, JSON)


def _json_members(writer: "LarkWriter", name: str, node: Node) -> list[str]:
    return _json_extra_members(writer, key(name), node)


def _json_extra_members(writer: "LarkWriter", terminal: str, node: Node) -> list[str]:
    return [f'{terminal} ws ":" ws {writer.rule(node)} ws']


JSON_FORM = ObjectForm(
    '"{" ws ', '"," ws ', '"}"', '"{" ws "}"', "", _json_extra_key, _json_members, _json_extra_members
)


@dataclass(frozen=True, slots=True)
class _Bits:
    """The meaning of the bits of the rules' parameter: required keys, other keys, slots, and then wanted members."""

    required: int
    tracked: int  # keys with a bit, the required ones first
    slots: int  # for undeclared keys that count
    counted: int  # of these, so many tell how many keys there are at least
    room: int | None  # how many optional members fit
    wanted: tuple[Wanted, ...]

    def clear(self, wanted: frozenset[Wanted]) -> list[str]:
        """Conditions: none of these came that are wanted for their values."""
        return [f"bit_clear({self._bit(one)})" for one in self.wanted if one in wanted and one.value != ANY]

    def mask(self, satisfied: frozenset[Wanted], bit: int | None = None) -> int:
        """The bits that a member sets: its own, and those of the wanted members that it is."""
        own = 0 if bit is None else 1 << bit
        return own | sum(1 << self._bit(one) for one in satisfied) if satisfied else own

    def complete(self, fewest: int, *, counts_few: bool) -> list[str]:
        """The conditions for the object's end."""
        conditions = [f"is_ones([0:{self.required}])"] if self.required else []
        conditions += [count_at_least(f"[0:{self.tracked + self.counted}]", fewest)] if counts_few else []
        first = self.tracked + self.slots
        return [*conditions, f"is_ones([{first}:{first + len(self.wanted)}])"] if self.wanted else conditions

    def has_room(self) -> list[str]:
        """The condition for an optional member."""
        return [count_below(f"[{self.required}:{self.tracked + self.slots}]", self.room)] if self.room else []

    def _bit(self, wanted: Wanted) -> int:
        return self.tracked + self.slots + self.wanted.index(wanted)


def object_rule(writer: "LarkWriter", shape: Object, name: str, form: ObjectForm = JSON_FORM) -> str:
    """Return the body of an object's rule; its helper rules are added to the writer."""
    written, leading = writer.model.nodes[writer.node], _leading(shape)
    if leading:
        writer.note(("required",), "narrowed", f"{len(leading)} of them come first, in the schema's order")
    keys = [name for name in writer.productivity.possible_keys(shape) if name not in leading]
    extras = _extras(writer, shape, form)
    if shape.most == 0:
        written.objects.append(({}, frozenset(), False))
        written.keys = ((), 0, None)
        return form.empty
    counts_few = shape.fewest > len(shape.required)
    bits = _bits(writer, shape, keys, len(leading), has_extras=bool(extras))
    values = {property_name: writer.normalizer.value_node(shape, property_name) for property_name in (*leading, *keys)}
    if not any(one.value != ANY or one in satisfied for one in bits.wanted for _, _, satisfied, _ in extras):
        known = (values, frozenset(node for _, node, _, _ in extras), bits.slots > 0)
        written.objects.append(known)
    complete = bits.complete(shape.fewest - len(leading), counts_few=counts_few)
    members = _members(writer, shape, keys, bits, form)
    for terminal, node, satisfied, fitting in extras:
        ways = form.extra_members(writer, terminal, node)
        # A key that is written twice has its last value: after a member that is wanted for its value, there are only
        # such under these keys.
        again = [] if any(one.value != ANY for one in satisfied) else bits.clear(fitting)
        members += _extra_members(ways, bits, satisfied, again, is_open=shape.most is None)
    if not leading and not counts_few and shape.most is None and not bits.slots and not bits.wanted:
        _note_direct(writer, shape, keys, bits, extras)
    if not members:
        return form.empty
    writer.model.has_open_keys |= bool(extras) or bits.tracked < len(keys)
    is_endless = shape.most is None and (bool(extras) or bits.tracked < len(keys))
    more = [] if is_endless else [_another(bits, has_extras=bool(extras))]
    ends = f"{form.closing}{only_if(complete)} | "
    writer.rules.append(f"{name}_f::_: {ends}{name}_kv::_")
    if form.head:  # once for all members, which follow its text
        writer.rules.append(f"{name}_kv::_: {form.head}{name}_m::_")
    writer.rules += [
        f"{name}_{'m' if form.head else 'kv'}::_: "
        + "\n  | ".join(f"{way} {name}_r::{after}" for way, after in members),
        f"{name}_r::_: {ends}{form.comma}{name}_kv::_{only_if(more)}",
    ]
    writer.member_count += len(leading) + len(members)
    if not leading:
        return f"{form.opening}{name}_f::0x0"
    first = [f"{form.head}{way} {form.comma}" for key in leading for way in form.members(writer, key, values[key])]
    return f"{form.opening}{''.join(first)}{name}_kv::0x0"


def _note_direct(writer: "LarkWriter", shape: Object, keys: list[str], bits: _Bits, extras: "list[_Extra]") -> None:
    """Note the members if declared keys, each with one node, are all that tells the object's states apart."""
    named_keys, patterns = writer.productivity.named_keys(shape), writer.productivity.patterns(shape)
    if bits.tracked < len(named_keys) or len(extras) > 1 or shape.names != ANY or patterns:
        return  # also if a declared key is impossible: undeclared keys do not include it
    named = []
    for property_name in keys:
        ways = [way.node for way in writer.productivity.named_ways(shape, property_name)]
        if ways != [writer.normalizer.value_node(shape, property_name)] or not writer.productivity.is_productive(*ways):
            return
        named.append((property_name, ways[0]))
    extra = next((node for _, node, _, _ in extras), None)
    writer.model.nodes[writer.node].keys = (tuple(named), (1 << bits.required) - 1, extra)


def _bits(writer: "LarkWriter", shape: Object, keys: list[str], leading: int, *, has_extras: bool) -> _Bits:
    """Return the layout of the bits; raises :class:`NoExactGrammar` if they do not suffice."""
    required, fewest = len(shape.required) - leading, shape.fewest - leading
    counts_few = fewest > required
    wanted = tuple(sorted(shape.wanted, key=lambda one: one.order))
    tracked = min(len(keys), BITS - len(wanted))  # the others are optional: of one written twice, the last value counts
    if tracked < len(keys) and any(one.value != ANY for one in wanted):
        reason = f"more than {BITS} properties cannot be told apart"
        raise NoExactGrammar(reason, NEGATING, replace(shape, wanted=frozenset()))
    is_endless = counts_few and has_extras and has_endless_keys(writer, shape)
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
        raise NoExactGrammar(reason, ("minProperties",), replace(shape, fewest=0))
    if tracked + slots + len(wanted) > BITS or (counts_few and fewest > tracked + slots):
        reason, wider = f"more than {BITS} properties cannot be counted", replace(shape, fewest=0, most=None)
        raise NoExactGrammar(reason, ("minProperties", "maxProperties"), wider)
    if counts_few and tracked < len(keys):
        writer.note(("minProperties",), "narrowed", f"only the first {BITS} properties count")
    if counts_few and has_extras and not is_endless and fewest > required + 1:
        reason = "of undeclared keys, one counts: it is not known that there are always more of them"
        writer.note(("minProperties",), "narrowed", reason)
    return _Bits(required, tracked, slots, slots if is_endless else min(slots, 1), room, wanted)


def _members(
    writer: "LarkWriter", shape: Object, keys: list[str], bits: _Bits, form: ObjectForm
) -> list[tuple[str, str]]:
    """Return the ways to write a named member, each with the parameter of the rule after it."""
    members = []
    for number, property_name in enumerate(keys):
        if number >= bits.required and bits.room == 0:
            break  # only the required ones fit
        conditions = [f"bit_clear({number})"] if number < bits.tracked else []
        conditions += bits.has_room() if number >= bits.required else []
        for choice in writer.productivity.named_ways(shape, property_name):
            if writer.productivity.is_productive(choice.node):
                mask = bits.mask(choice.satisfied, number if number < bits.tracked else None)
                after = f"{_setting(mask)}{only_if(conditions)}"
                members += [(way, after) for way in form.members(writer, property_name, choice.node)]
    return members


def _setting(mask: int) -> str:
    """Return the parameter of the next rule: this one with these bits set."""
    if not mask & (mask - 1):
        return f"set_bit({mask.bit_length() - 1})" if mask else "_"
    return f"bit_or({mask:#x})"


_Extra = tuple[str, Node, frozenset[Wanted], frozenset[Wanted]]
"""A way to write a member under an undeclared key: the terminal of its key, the node of its value, the wanted members
that it is, and those that members under these keys may be."""


def _extras(writer: "LarkWriter", shape: Object, form: ObjectForm) -> list[_Extra]:
    if len(writer.productivity.patterns(shape)) > MAX_COMBINED_PATTERNS:
        reason = f"with more than {MAX_COMBINED_PATTERNS} patterns, no key that matches several of them is written"
        writer.note(("patternProperties",), "narrowed", reason)
    extras: list[_Extra] = []
    for found, node in writer.productivity.extra_nodes(shape):
        ways = writer.productivity.extra_ways(shape, found, node)
        fitting = frozenset[Wanted]().union(*(way.satisfied for way in ways))
        for way in ways:
            if writer.productivity.is_productive(way.node):
                terminal = form.extra_key(writer, replace(shape, names=way.names), found)
                extras += [(terminal, way.node, way.satisfied, fitting)] if terminal else []
        for one in fitting:
            if one.value != ANY:
                reason = (
                    "negated: of undeclared keys that may fail it, only such that do come after the first that does"
                )
                writer.normalizer.notes.add(one.pointer, "narrowed", reason)
    return extras


def _leading(shape: Object) -> list[str]:
    """Return the required keys that have no bit: they come first, in the order of the largest subschema."""
    count = len(shape.required) - (BITS - len(shape.wanted))
    if count <= 0:
        return []
    if shape.wanted:
        raise NoExactGrammar("too many members are required", NEGATING, replace(shape, wanted=frozenset()))
    declared = ([name for name, _ in rules.named] for rules in shape.maps)
    longest = max(declared, key=lambda names: (len(names), names), default=[])
    order = {name: number for number, name in enumerate(longest)}
    return sorted(shape.required, key=lambda name: (order.get(name, len(order)), name))[:count]


def _another(bits: _Bits, *, has_extras: bool) -> str:
    """Return the condition under which another member may follow: without it a comma could be a dead end."""
    required, room, end = bits.required, bits.room, bits.tracked + bits.slots
    limit = end - required if room is None else room if has_extras else min(end - required, room)
    ways = [count_below(f"[0:{required}]", required)] if required else []
    ways += [count_below(f"[{required}:{end}]", limit)] if limit else []
    return ways[0] if len(ways) == 1 else f"or({ways[0]}, {ways[1]})"


def _extra_members(
    ways: list[str], bits: _Bits, satisfied: frozenset[Wanted], conditions: list[str], *, is_open: bool
) -> list[tuple[str, str]]:
    """Return members under undeclared keys. If counted, the n-th sets the n-th bit after those of the named keys."""
    room, onward = [*bits.has_room(), *conditions], []
    for bit in range(bits.tracked, bits.tracked + bits.slots):
        before = [f"bit_clear({bit})", *([f"bit_set({bit - 1})"] if bit > bits.tracked else [])]
        onward.append(f"{_setting(bits.mask(satisfied, bit))}{only_if([*before, *room])}")
    if is_open:
        before = [f"bit_set({bits.tracked + bits.slots - 1})"] if bits.slots else []
        onward.append(f"{_setting(bits.mask(satisfied))}{only_if([*before, *room])}")
    return [(way, after) for after in onward for way in ways]
