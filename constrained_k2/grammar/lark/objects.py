"""Objects in any property order: the 64-bit parameter of one rule has a bit for each key that has been written.

o:     "{" ws o_f::0x0
o_f::_ : "}" %if COMPLETE | o_kv::_                                    the first member, or the end
o_kv::_: KEY_A ws ":" ws VALUE_A ws o_r::set_bit(0) %if bit_clear(0) | …   one member; sets its bit
o_r::_ : "}" %if COMPLETE | "," ws o_kv::_                             another member, or the end
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from constrained_k2.grammar.lark.terminals import BITS, NoExactGrammar, count_at_least, count_below, key, only_if
from constrained_k2.grammar.productivity import MAX_COMBINED_PATTERNS
from constrained_k2.schema.shapes import Node, Object

if TYPE_CHECKING:
    from constrained_k2.grammar.lark.writer import LarkWriter


def object_rule(writer: "LarkWriter", shape: Object, name: str) -> str:
    """Return the body of an object's rule; its helper rules are added to the writer."""
    fixed = _fixed(writer, shape)
    keys = [name for name in writer.productivity.possible_keys(shape) if name not in fixed]
    required = len(shape.required) - len(fixed)
    extras = _extras(writer, shape)
    if shape.most == 0:
        writer.members.setdefault(writer.node, []).append(({}, frozenset(), False))
        return '"{" ws "}"'
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
    members = []
    for bit, property_name in enumerate(keys):
        if bit >= required and room == 0:
            break  # only the required ones fit
        value = writer.rule(values[property_name])
        target, conditions = (f"set_bit({bit})", [f"bit_clear({bit})"]) if bit < tracked else ("_", [])
        conditions += has_room if bit >= required else []
        members.append(_member(key(property_name), value, f"{name}_r::{target}", conditions))
    for terminal, node in extras:
        members += _extra_members(terminal, writer.rule(node), name, tracked, slots, has_room, is_open=most is None)
    if not members:
        return '"{" ws "}"'
    is_endless = most is None and (bool(extras) or tracked < len(keys))
    more = [] if is_endless else [_another(required, tracked, slots, room, has_extras=bool(extras))]
    writer.rules.append(f'{name}_f::_: "}}"{only_if(complete)} | {name}_kv::_')
    writer.rules.append(f"{name}_kv::_: " + "\n  | ".join(members))
    writer.rules.append(f'{name}_r::_: "}}"{only_if(complete)} | "," ws {name}_kv::_{only_if(more)}')
    if fixed:
        first = (f'{key(known)} ws ":" ws {writer.rule(values[known])}' for known in fixed)
        return " ws ".join(['"{"', ' ws "," ws '.join(first), f"{name}_r::0x0"])
    return f'"{{" ws {name}_f::0x0'


def _extras(writer: "LarkWriter", shape: Object) -> list[tuple[str, Node]]:
    if len(writer.productivity.patterns(shape)) > MAX_COMBINED_PATTERNS:
        reason = f"with more than {MAX_COMBINED_PATTERNS} patterns, no key that matches several of them is written"
        writer.note(("patternProperties",), "narrowed", reason)
    nodes = [pair for pair in writer.productivity.extra_nodes(shape) if writer.productivity.is_productive(pair[1])]
    return [(terminal, node) for found, node in nodes if (terminal := writer.extra_key(shape, found))]


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


def _extra_members(  # noqa: PLR0913, PLR0917 - the parts of one rule
    terminal: str, value: str, name: str, tracked: int, slots: int, room: list[str], *, is_open: bool
) -> list[str]:
    """Return members under undeclared keys. If counted, the n-th sets the n-th bit after those of the named keys."""
    members = []
    for slot in range(slots):
        bit = tracked + slot
        conditions = [f"bit_clear({bit})", *([f"bit_set({bit - 1})"] if slot else []), *room]
        members.append(_member(terminal, value, f"{name}_r::set_bit({bit})", conditions))
    if is_open:
        members.append(_member(terminal, value, f"{name}_r::_", [f"bit_set({tracked})"] if slots else []))
    return members


def _member(key_terminal: str, value: str, rest: str, conditions: list[str]) -> str:
    return f'{key_terminal} ws ":" ws {value} ws {rest}{only_if(conditions)}'
