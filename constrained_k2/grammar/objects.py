"""Objects in any property order: one rule whose 64-bit parameter remembers which keys have been written.

o:     "{" ws o_f::0x0
o_f::_ : "}" %if COMPLETE | o_kv::_                                    the first member, or none
o_kv::_: KEY_A ws ":" ws VALUE_A ws o_r::set_bit(0) %if bit_clear(0) | …   one member, its bit set
o_r::_ : "}" %if COMPLETE | "," ws o_kv::_                             the end, or another member
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from constrained_k2.grammar.cannot_write import CannotWrite
from constrained_k2.grammar.reach import MOST_PATTERNS
from constrained_k2.grammar.terminals import key, only_if
from constrained_k2.schema.shapes import Object

if TYPE_CHECKING:
    from constrained_k2.grammar.lark import LarkWriter

_BITS = 64


def object_rule(writer: "LarkWriter", shape: Object, name: str) -> str:
    """The body of an object's rule; its further rules are added to the writer's."""
    keys = list(writer.reach.possible_keys(shape))
    fixed = _fixed(writer, shape)
    keys = [name for name in keys if name not in fixed]
    required = len(shape.required) - len(fixed)
    if len(writer.reach.patterns(shape)) > MOST_PATTERNS:
        reason = "of so many patterns a key is written that matches one at most"
        writer.note(("patternProperties",), "narrowed", reason)
    extras = [
        (writer.extra_key(shape, found), node)
        for found, node in writer.reach.extra_nodes(shape)
        if writer.reach.is_productive(node)
    ]
    extras = [(terminal, node) for terminal, node in extras if terminal]
    if shape.most == 0:
        writer.note_members({}, (), counts_extra=False)
        return '"{" ws "}"'
    fewest = shape.fewest - len(fixed)
    most = None if shape.most is None else shape.most - len(fixed)
    counts_few = fewest > required
    tracked = min(len(keys), _BITS)  # the rest are optional: written twice, the last one counts, and it is valid too
    slots = 0
    if most is not None:
        tracked = len(keys)
        slots = min(most - required, _BITS) if extras else 0
    elif counts_few and extras:
        slots = 1
    if counts_few and extras and (fewest > tracked + 1 or (most is not None and fewest > 1)):
        raise CannotWrite(
            "keys of the model's choice cannot be counted: one written twice would count twice",
            ("minProperties",),
            replace(shape, fewest=0),
        )
    if tracked + slots > _BITS:
        raise CannotWrite(
            f"more than {_BITS} properties cannot be counted",
            ("minProperties", "maxProperties"),
            replace(shape, fewest=0, most=None),
        )
    values = {property_name: writer.normalizer.value_node(shape, property_name) for property_name in (*fixed, *keys)}
    writer.note_members(values, (node for _, node in extras), counts_extra=slots > 0)
    counted = f"[{required}:{tracked + slots}]"  # the optional keys, and the places of other keys
    room = None if most is None else most - required
    complete = [f"is_ones([0:{required}])"] if required else []
    if counts_few:
        complete.append(f"bit_count_ge([0:{tracked + min(slots, 1)}], {fewest})")
    has_room = [f"bit_count_lt({counted}, {room})"] if room else []
    members = []
    for bit, property_name in enumerate(keys):
        if bit >= required and room == 0:
            break  # there is only room for the required ones
        value = writer.rule(values[property_name])
        conditions = [
            *([f"bit_clear({bit})"] if bit < tracked else []),
            *(has_room if bit >= required else []),
        ]
        target = f"set_bit({bit})" if bit < tracked else "_"
        members.append(_member(key(property_name), value, f"{name}_r::{target}", conditions))
    for terminal, node in extras:
        members += _extra_members(terminal, writer.rule(node), name, tracked, slots, has_room, is_open=most is None)
    if not members:
        return '"{" ws "}"'
    is_endless = most is None and (bool(extras) or tracked < len(keys))
    more = [] if is_endless else [_another(required, tracked, slots, room, has_extras=bool(extras))]
    writer.add_rule(f'{name}_f::_: "}}"{only_if(complete)} | {name}_kv::_')
    writer.add_rule(f"{name}_kv::_: " + "\n  | ".join(members))
    writer.add_rule(f'{name}_r::_: "}}"{only_if(complete)} | "," ws {name}_kv::_{only_if(more)}')
    if fixed:
        first = (f'{key(known)} ws ":" ws {writer.rule(values[known])}' for known in fixed)
        return " ws ".join(['"{"', ' ws "," ws '.join(first), f"{name}_r::0x0"])
    return f'"{{" ws {name}_f::0x0'


def _fixed(writer: "LarkWriter", shape: Object) -> list[str]:
    """The required keys for which there are no bits: they come first."""
    fixed = _in_schema_order(shape)[: max(len(shape.required) - _BITS, 0)]
    if fixed:
        writer.note(("required",), "narrowed", f"{len(fixed)} of them come first, in the schema's order")
    return fixed


def _in_schema_order(shape: Object) -> list[str]:
    """The required keys, in the order in which the schema speaks of the most of them."""
    longest = max(
        ([name for name, _ in rules.named] for rules in shape.maps), key=lambda names: (len(names), names), default=[]
    )
    order = {name: number for number, name in enumerate(longest)}
    return sorted(shape.required, key=lambda name: (order.get(name, len(order)), name))


def _another(required: int, tracked: int, slots: int, room: int | None, *, has_extras: bool) -> str:
    """The condition under which another member may follow: without it a comma could lead nowhere."""
    optional = tracked + slots - required
    limit = optional if room is None else room if has_extras else min(optional, room)
    ways = []
    if required:
        ways.append(f"bit_count_lt([0:{required}], {required})")
    if limit:
        ways.append(f"bit_count_lt([{required}:{tracked + slots}], {limit})")
    return ways[0] if len(ways) == 1 else f"or({ways[0]}, {ways[1]})"


def _extra_members(  # noqa: PLR0913, PLR0917 - the parts of one rule
    terminal: str, value: str, name: str, tracked: int, slots: int, room: list[str], *, is_open: bool
) -> list[str]:
    """Members under other keys. Where they are counted, the n-th of them sets the n-th bit behind the named keys'."""
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
