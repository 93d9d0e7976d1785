"""Arrays: first items, the rest, counts, ``contains``, and unique items out of a finite set."""

from itertools import product
from typing import TYPE_CHECKING

from constrained_k2.errors import SchemaTooCostly
from constrained_k2.grammar.terminals import only_if
from constrained_k2.schema.shapes import ANY, Array, Boolean, Node, Null, Value

if TYPE_CHECKING:
    from constrained_k2.grammar.lark import LarkWriter

_BITS = 64
_MOST_CONTAINS = 3


def array_rule(writer: "LarkWriter", shape: Array, name: str) -> str:
    """The body of an array's rule; its further rules are added to the writer's."""
    if shape.unique and (shape.longest is None or shape.longest > 1):
        return _unique(writer, shape, name)
    if shape.contains:
        return _containing(writer, shape, name)
    return f'"[" ws {_items(writer, shape, name)} "]"'


def _items(writer: "LarkWriter", shape: Array, name: str) -> str:
    """The items: a rule for each position of the prefix, then a bounded repetition of the rest."""
    longest = shape.longest
    reach = len(shape.prefix)
    for position, node in enumerate(shape.prefix):
        if not writer.is_productive(node):
            reach, longest = position, position
            break
    if longest is not None:
        reach = min(reach, longest)
    parts = []
    for position in range(reach):
        comma = '"," ws ' if position else ""
        end = f" | {_EMPTY}" if position >= shape.shortest else ""
        parts.append(f"{name}_i{position}: {comma}{writer.rule(shape.prefix[position])} ws {name}_i{position + 1}{end}")
    least = max(shape.shortest - reach, 0)
    most = None if longest is None else longest - reach
    parts.append(f"{name}_i{reach}: {_repeated(writer, shape.rest, least, most, first=not reach)}")
    for part in parts:
        writer.add_rule(part)
    return f"{name}_i0"


_EMPTY = '""'


def _repeated(writer: "LarkWriter", node: Node, least: int, most: int | None, *, first: bool) -> str:
    """``least`` to ``most`` items; ``first``: no comma before the first of them."""
    if most == 0 or not writer.is_productive(node):
        return _EMPTY
    item = f"{writer.rule(node)} ws"
    if not first:
        return f'("," ws {item}){_times(least, most)}'
    more = f'("," ws {item}){_times(max(least - 1, 0), None if most is None else most - 1)}'
    return f"{item} {more}" if least else f"({item} {more})?"


def _times(least: int, most: int | None) -> str:
    if most is None:
        return "*" if not least else f"{{{least},}}"
    return f"{{{least},{most}}}"


def _unique(writer: "LarkWriter", shape: Array, name: str) -> str:
    """Items out of a finite set, each at most once: a bit a value."""
    shapes = writer.normalizer.shapes(shape.rest)
    if shape.prefix or shape.contains or not all(isinstance(item, Value | Boolean | Null) for item in shapes):
        raise writer.cannot("uniqueItems of items that are no finite set")
    values = []
    for item in shapes:
        if isinstance(item, Value):
            values.append(writer.value(item.value))
        elif isinstance(item, Null):
            values.append('"null"')
        elif isinstance(item, Boolean):
            values += [f'"{str(value).lower()}"' for value in sorted(item.values)]
    values = list(dict.fromkeys(values))
    if shape.shortest > len(values):
        raise writer.cannot(f"{shape.shortest} unique items out of {len(values)}")
    if len(values) > _BITS:
        raise SchemaTooCostly(
            f"unique items out of {len(values)} values", "", "Drop uniqueItems", "uniqueItems", _BITS, len(values)
        )
    complete = f" %if bit_count_ge(_, {shape.shortest})" if shape.shortest else ""
    room = f"bit_count_lt(_, {shape.longest})" if shape.longest is not None else ""
    items = []
    for bit, value in enumerate(values):
        condition = f"and(bit_clear({bit}), {room})" if room else f"bit_clear({bit})"
        items.append(f"{value} ws {name}_r::set_bit({bit}) %if {condition}")
    most = len(values) if shape.longest is None else min(shape.longest, len(values))
    return _loop(writer, name, items, complete, f" %if bit_count_lt(_, {most})")


def _containing(writer: "LarkWriter", shape: Array, name: str) -> str:  # noqa: PLR0912 - one loop builds one rule
    """Items of which some must satisfy further nodes: a run of bits counts each, and one the items if they count."""
    if shape.prefix or len(shape.contains) > _MOST_CONTAINS:
        raise writer.cannot(f"contains beside prefixItems, or more than {_MOST_CONTAINS} of them")
    if shape.longest is not None and any(fewest for _, fewest, _ in shape.contains):
        raise writer.cannot("contains beside maxItems: other items could take all the room")
    wanted = sorted(shape.contains, key=lambda entry: (sorted(entry[0]), entry[1], entry[2] or 0))
    start = 0
    counters = []  # (first bit, number of bits)
    for _, fewest, most in wanted:
        bits = fewest if most is None else most
        counters.append((start, bits))
        start += bits
    length = shape.longest if shape.longest is not None else shape.shortest
    if start + length > _BITS:
        raise SchemaTooCostly(
            "one array counts more items than can be remembered",
            "",
            "Lower its counts",
            "contains",
            _BITS,
            start + length,
        )
    complete = [
        f"bit_set({first + fewest - 1})" for (first, _), (_, fewest, _) in zip(counters, wanted, strict=True) if fewest
    ]
    if shape.shortest:
        complete.append(f"bit_set({start + shape.shortest - 1})")
    counters.append((start, length))
    items = []
    endless = shape.rest.union(*(_opposite(node) for node, _, most in wanted if most is not None))
    if any(most is not None for _, _, most in wanted) and not writer.is_known(endless):
        raise writer.cannot("maxContains of items that are all contained")
    for which in product((False, True), repeat=len(wanted)):
        node = shape.rest
        for counts, (wish, _, most) in zip(which, wanted, strict=True):
            if counts:
                node |= wish
            elif most is not None:
                node |= _opposite(wish)
        if not writer.is_known(node):
            continue
        step = f"{name}_r::_"
        for number, counted in reversed(list(enumerate((*which, True)))):
            if counted and counters[number][1]:
                limited = (wanted[number][2] if number < len(wanted) else shape.longest) is not None
                step = _count(
                    writer,
                    f"{name}_c{''.join(str(int(w)) for w in which)}_{number}",
                    counters[number],
                    step,
                    limited=limited,
                )
            elif counted and number < len(wanted) and wanted[number][2] is not None:
                break  # may not occur at all
        else:
            items.append(f"{writer.rule(node) if node != ANY else 'any'} ws {step}")
    if not items:
        return '"[" ws "]"'
    more = f" %if bit_clear({start + length - 1})" if shape.longest is not None else ""
    return _loop(writer, name, items, only_if(complete), more)


def _opposite(node: Node) -> Node:
    ((pointer, holds),) = node
    return frozenset({(pointer, not holds)})


def _count(writer: "LarkWriter", name: str, counter: tuple[int, int], step: str, *, limited: bool) -> str:
    """A rule without text that sets the counter's next bit on the way to ``step``; past the last one only if free."""
    first, bits = counter
    target = step.rpartition("::")[0]
    ways = [
        f'"" {target}::set_bit({first + bit}) %if '
        + (f"and(bit_clear({first + bit}), bit_set({first + bit - 1}))" if bit else f"bit_clear({first})")
        for bit in range(bits)
    ]
    if not limited:
        ways.append(f'"" {target}::_ %if bit_set({first + bits - 1})')
    writer.add_rule(f"{name}::_: " + " | ".join(ways))
    return f"{name}::_"


def _loop(writer: "LarkWriter", name: str, items: list[str], complete: str, more: str) -> str:
    writer.add_rule(f'{name}_f::_: "]"{complete}' + (f" | {name}_v::_" if items else ""))
    if items:
        writer.add_rule(f"{name}_v::_: " + "\n  | ".join(items))
        writer.add_rule(f'{name}_r::_: "]"{complete} | "," ws {name}_v::_{more}')
    return f'"[" ws {name}_f::0x0'
