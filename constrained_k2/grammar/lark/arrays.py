"""Arrays: prefix items, the rest, counts, ``contains``, and unique items.

{"prefixItems": [A], "items": B, "maxItems": 3}     an A, then up to two of B, each behind a comma
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from constrained_k2.grammar.lark.array_states import counted_rule
from constrained_k2.grammar.lark.terminals import BITS, count_at_least, count_below, only_if
from constrained_k2.grammar.lark.unique_items import compared_items
from constrained_k2.grammar.plan.leaves import INTEGERS
from constrained_k2.schema.shapes import Array, Number

if TYPE_CHECKING:
    from constrained_k2.grammar.lark.writer import LarkWriter

_EMPTY = '""'
_MAX_UNROLLED = 16


def array_rule(writer: "LarkWriter", shape: Array, name: str) -> str:
    """Return the body of an array's rule; its helper rules are added to the writer."""
    if shape.unique and (shape.longest is None or shape.longest > 1):
        values = None if shape.prefix or shape.contains else writer.productivity.values(shape.rest)
        if values is not None and len(values) <= BITS:
            return _of_few_values(writer, shape, name, values)
        shape = compared_items(writer, shape)
    if shape.contains:
        return counted_rule(writer, shape, name)
    prefix, longest = writer.productivity.items(shape)
    if not prefix and not shape.prefix and not shape.unique:
        writer.model.nodes[writer.node].items = (shape.rest, shape.shortest, longest)
    return f'"[" ws {_items(writer, shape, name)} "]"'


def _items(writer: "LarkWriter", shape: Array, name: str) -> str:
    """Return the name of the items' rule: a rule for each prefix item, then a bounded repetition of the rest."""
    prefix, longest = writer.productivity.items(shape)
    for index, node in enumerate(prefix):
        comma = '"," ws ' if index else ""
        end = f" | {_EMPTY}" if index >= shape.shortest else ""
        writer.rules.append(f"{name}_i{index}: {comma}{writer.rule(node)} ws {name}_i{index + 1}{end}")
    least = max(shape.shortest - len(prefix), 0)
    most = None if longest is None else longest - len(prefix)
    rest = (
        _EMPTY
        if most == 0
        else _repeated(writer, writer.rule(shape.rest), f"{name}_k", (least, most), first=not shape.prefix)
    )
    writer.rules.append(f"{name}_i{len(prefix)}: {rest}")
    return f"{name}_i0"


def _repeated(writer: "LarkWriter", rule: str, name: str, counts: tuple[int, int | None], *, first: bool) -> str:
    """Return a repetition of the least to the most items, with a comma before each but the very ``first``."""
    item, (least, most) = f"{rule} ws", counts
    limit = max(least, most or 0)
    if limit > _MAX_UNROLLED:  # counted by a rule's parameter: the cost does not grow with the count
        bits = f"[0:{limit.bit_length()}]"
        more = [f'"," ws {item} {name}::incr({bits}) %if lt({bits}, {limit})']
        if most is None:
            more.append(f'"," ws {item} {name}::_ %if ge({bits}, {least})')
        writer.rules.append(f"{name}::_: " + " | ".join([*more, f"{_EMPTY} %if ge({bits}, {least})"]))
        if not first:
            return f"{name}::0x0"
        return f"{item} {name}::0x1" if least else f"({item} {name}::0x1)?"
    if most == 1 and first:  # LLGuidance takes no repetition of {0,0}
        return item if least else f"({item})?"
    fewest, limits = max(least - first, 0), "" if most is None else most - first
    times = f"{{{fewest},{limits}}}" if fewest or most is not None else "*"
    others = f'("," ws {item}){times}'
    if not first:
        return others
    return f"{item} {others}" if least else f"({item} {others})?"


def _of_few_values(writer: "LarkWriter", shape: Array, name: str, listed: Iterable[Any]) -> str:
    """Return the body for unequal items of a small set, with one bit for each value."""
    array, writer.node = writer.node, shape.rest
    if any(isinstance(one, Number) for one in writer.productivity.shapes(shape.rest)):
        writer.note(*INTEGERS)
    values = list(dict.fromkeys(map(writer.value_text, listed)))
    writer.node = array
    if not values:
        return '"[" ws "]"'
    complete = [count_at_least("_", shape.shortest)] if shape.shortest else []
    most = len(values) if shape.longest is None else min(shape.longest, len(values))
    room = [count_below("_", most)] if most < len(values) else []
    items = [
        f"{value} ws {name}_r::set_bit({bit}){only_if([f'bit_clear({bit})', *room])}"
        for bit, value in enumerate(values)
    ]
    writer.rules += [
        f'{name}_f::_: "]"{only_if(complete)} | {name}_v::_',
        f"{name}_v::_: " + "\n  | ".join(items),
        f'{name}_r::_: "]"{only_if(complete)} | "," ws {name}_v::_{only_if([count_below("_", most)])}',
    ]
    return f'"[" ws {name}_f::0x0'
