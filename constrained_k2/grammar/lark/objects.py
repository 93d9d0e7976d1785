"""Objects in any property order: the 64-bit parameter of one rule has a bit for each key that has been written.

o:     "{" ws o_f::0x0
o_f::_ : "}" %if COMPLETE | o_kv::_                                    the first member, or the end
o_kv::_: KEY_A ws ":" ws VALUE_A ws o_r::set_bit(0) %if bit_clear(0) | …   one member; sets its bit
o_r::_ : "}" %if COMPLETE | "," ws o_kv::_                             another member, or the end

Arguments in XTML (:mod:`~constrained_k2.grammar.lark.arguments`) have the same rules in another form.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from constrained_k2.grammar.lark.terminals import BITS, NoExactGrammar, count_at_least, count_below, key, only_if
from constrained_k2.grammar.productivity import MAX_COMBINED_PATTERNS
from constrained_k2.grammar.spelling import JSON
from constrained_k2.schema.shapes import Node, Object

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


def object_rule(writer: "LarkWriter", shape: Object, name: str, form: ObjectForm = JSON_FORM) -> str:
    """Return the body of an object's rule; its helper rules are added to the writer."""
    fixed = _fixed(writer, shape)
    keys = [name for name in writer.productivity.possible_keys(shape) if name not in fixed]
    required = len(shape.required) - len(fixed)
    extras = _extras(writer, shape, form)
    if shape.most == 0:
        writer.members.setdefault(writer.node, []).append(({}, frozenset(), False))
        return form.empty
    fewest = shape.fewest - len(fixed)
    most = None if shape.most is None else shape.most - len(fixed)
    counts_few = fewest > required
    tracked = min(len(keys), BITS)  # the rest are optional; if one is written twice, the last value counts
    slots = int(bool(counts_few and extras))
    if most is not None:
        tracked = len(keys)
        most = most if extras else min(most, tracked)
        slots = most - required if extras else 0
    elif counts_few and tracked < len(keys) and fewest <= tracked:
        writer.note(("minProperties",), "narrowed", f"only the first {BITS} properties count")
    if counts_few and extras and (fewest > tracked + 1 or (most is not None and fewest > 1)):
        reason = "undeclared keys cannot be counted: a key written twice would count twice"
        raise NoExactGrammar(reason, ("minProperties",), replace(shape, fewest=0))
    if tracked + slots > BITS or (counts_few and fewest > tracked + slots):
        reason, wider = f"more than {BITS} properties cannot be counted", replace(shape, fewest=0, most=None)
        raise NoExactGrammar(reason, ("minProperties", "maxProperties"), wider)
    values = {property_name: writer.normalizer.value_node(shape, property_name) for property_name in (*fixed, *keys)}
    writer.members.setdefault(writer.node, []).append((values, frozenset(node for _, node in extras), slots > 0))
    counted = f"[{required}:{tracked + slots}]"  # the optional keys, and the slots of undeclared keys
    room = None if most is None else most - required
    complete = [f"is_ones([0:{required}])"] if required else []
    complete += [count_at_least(f"[0:{tracked + min(slots, 1)}]", fewest)] if counts_few else []
    has_room = [count_below(counted, room)] if room else []
    members: list[str] = []
    for bit, property_name in enumerate(keys):
        if bit >= required and room == 0:
            break  # only the required ones fit
        target, conditions = (f"set_bit({bit})", [f"bit_clear({bit})"]) if bit < tracked else ("_", [])
        conditions += has_room if bit >= required else []
        onward = f"{name}_r::{target}{only_if(conditions)}"
        members += (f"{way} {onward}" for way in form.members(writer, property_name, values[property_name]))
    for terminal, node in extras:
        ways = form.extra_members(writer, terminal, node)
        members += _extra_members(ways, f"{name}_r", tracked, slots, has_room, is_open=most is None)
    if not members:
        return form.empty
    is_endless = most is None and (bool(extras) or tracked < len(keys))
    more = [] if is_endless else [_another(required, tracked, slots, room, has_extras=bool(extras))]
    writer.rules.append(f"{name}_f::_: {form.closing}{only_if(complete)} | {name}_kv::_")
    if form.head:  # once for all members, which follow its text
        writer.rules.append(f"{name}_kv::_: {form.head}{name}_m::_")
    writer.rules.append(f"{name}_{'m' if form.head else 'kv'}::_: " + "\n  | ".join(members))
    writer.rules.append(f"{name}_r::_: {form.closing}{only_if(complete)} | {form.comma}{name}_kv::_{only_if(more)}")
    if fixed:
        first = (form.head + _one(form.members(writer, known, values[known])) for known in fixed)
        return f"{form.opening}{f' {form.comma}'.join(first)} {name}_r::0x0"
    return f"{form.opening}{name}_f::0x0"


def _one(ways: list[str]) -> str:
    return ways[0] if len(ways) == 1 else f"({' | '.join(ways)})"


def _extras(writer: "LarkWriter", shape: Object, form: ObjectForm) -> list[tuple[str, Node]]:
    if len(writer.productivity.patterns(shape)) > MAX_COMBINED_PATTERNS:
        reason = f"with more than {MAX_COMBINED_PATTERNS} patterns, no key that matches several of them is written"
        writer.note(("patternProperties",), "narrowed", reason)
    nodes = [pair for pair in writer.productivity.extra_nodes(shape) if writer.productivity.is_productive(pair[1])]
    return [(terminal, node) for found, node in nodes if (terminal := form.extra_key(writer, shape, found))]


def _fixed(writer: "LarkWriter", shape: Object) -> list[str]:
    """Return the required keys that have no bit: they come first."""
    count = len(shape.required) - BITS
    if count <= 0:
        return []
    writer.note(("required",), "narrowed", f"{count} of them come first, in the schema's order")
    declared = ([name for name, _ in rules.named] for rules in shape.maps)
    longest = max(declared, key=lambda names: (len(names), names), default=[])  # the order of the largest subschema
    order = {name: number for number, name in enumerate(longest)}
    return sorted(shape.required, key=lambda name: (order.get(name, len(order)), name))[:count]


def _another(required: int, tracked: int, slots: int, room: int | None, *, has_extras: bool) -> str:
    """Return the condition under which another member may follow: without it a comma could be a dead end."""
    optional = tracked + slots - required
    limit = optional if room is None else room if has_extras else min(optional, room)
    ways = [count_below(f"[0:{required}]", required)] if required else []
    ways += [count_below(f"[{required}:{tracked + slots}]", limit)] if limit else []
    return ways[0] if len(ways) == 1 else f"or({ways[0]}, {ways[1]})"


def _extra_members(  # noqa: PLR0913 - the parts of one rule
    ways: list[str], rest: str, tracked: int, slots: int, room: list[str], *, is_open: bool
) -> list[str]:
    """Return members under undeclared keys. If counted, the n-th sets the n-th bit after those of the named keys."""
    onward = []
    for slot in range(slots):
        bit = tracked + slot
        conditions = [f"bit_clear({bit})", *([f"bit_set({bit - 1})"] if slot else []), *room]
        onward.append(f"{rest}::set_bit({bit}){only_if(conditions)}")
    if is_open:
        onward.append(f"{rest}::_{only_if([f'bit_set({tracked})'] if slots else [])}")
    return [f"{way} {more}" for more in onward for way in ways]
