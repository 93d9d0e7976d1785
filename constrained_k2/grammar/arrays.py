"""Arrays: first items, the rest, counts, ``contains``, and unique items out of a finite set."""

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from constrained_k2.grammar.cannot_write import CannotWrite
from constrained_k2.grammar.terminals import only_if
from constrained_k2.schema.shapes import ANY, Array, Boolean, Node, Null, Value

if TYPE_CHECKING:
    from constrained_k2.grammar.lark import LarkWriter

_BITS = 64
_MOST_UNROLLED = 16
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
        if not writer.reach.is_productive(node):
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
    parts.append(f"{name}_i{reach}: {_repeated(writer, name, shape.rest, least, most, first=not reach)}")
    for part in parts:
        writer.add_rule(part)
    return f"{name}_i0"


_EMPTY = '""'


def _repeated(  # noqa: PLR0913 - what one repetition is
    writer: "LarkWriter", name: str, node: Node, least: int, most: int | None, *, first: bool
) -> str:
    """``least`` to ``most`` items; ``first``: no comma before the first of them."""
    if most == 0 or not writer.reach.is_productive(node):
        return _EMPTY
    item = f"{writer.rule(node)} ws"
    if max(least, most or 0) > _MOST_UNROLLED:
        return _counted(writer, f"{name}_k", item, least, most, first=first)
    if not first:
        return f'("," ws {item}){_times(least, most)}'
    more = f'("," ws {item}){_times(max(least - 1, 0), None if most is None else most - 1)}'
    return f"{item} {more}" if least else f"({item} {more})?"


def _counted(  # noqa: PLR0913 - what one repetition is
    writer: "LarkWriter", name: str, item: str, least: int, most: int | None, *, first: bool
) -> str:
    """A repetition counted by a rule's parameter: a large one costs no more than a small one."""
    bits = f"[0:{max(least, most or 0).bit_length()}]"
    if most is not None:
        more = [f'"," ws {item} {name}::incr({bits}) %if lt({bits}, {most})']
    else:
        more = [
            f'"," ws {item} {name}::incr({bits}) %if lt({bits}, {least})',
            f'"," ws {item} {name}::_ %if ge({bits}, {least})',
        ]
    writer.add_rule(f"{name}::_: " + " | ".join([*more, f"{_EMPTY} %if ge({bits}, {least})"]))
    if not first:
        return f"{name}::0x0"
    return f"{item} {name}::0x1" if least else f"({item} {name}::0x1)?"


def _times(least: int, most: int | None) -> str:
    if most is None:
        return "*" if not least else f"{{{least},}}"
    return f"{{{least},{most}}}"


def finite_values(writer: "LarkWriter", node: Node) -> list[str] | None:
    """Every value of a node as grammar, each once; None if there is no end of them."""
    shapes = writer.normalizer.shapes(node)
    values = []
    for item in shapes:
        if isinstance(item, Value):
            values.append(writer.value(item.value))
        elif isinstance(item, Null):
            values.append('"null"')
        elif isinstance(item, Boolean):
            values += [f'"{str(value).lower()}"' for value in sorted(item.values)]
        else:
            return None
    return list(dict.fromkeys(values))


def _unique(writer: "LarkWriter", shape: Array, name: str) -> str:
    """Items out of a finite set, each at most once: a bit a value."""
    values = finite_values(writer, shape.rest)
    problem = ""
    if shape.prefix or shape.contains:
        problem = "beside prefixItems or contains"
    elif values is None:
        problem = "of items that are no finite set: which came before cannot be remembered"
    elif len(values) > _BITS:
        problem = f"of items out of more than {_BITS} values"
    if problem or values is None:
        raise CannotWrite(problem, ("uniqueItems",), replace(shape, unique=False))
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
    without = replace(shape, contains=frozenset())
    keywords = ("contains", "minContains", "maxContains")
    if len(shape.contains) > _MOST_CONTAINS:
        raise CannotWrite(f"more than {_MOST_CONTAINS} of them in one array", keywords, without)
    if shape.prefix or (shape.longest is not None and any(fewest for _, fewest, _ in shape.contains)):
        if len(shape.contains) == 1 and all(most is None for _, _, most in shape.contains):
            return _containing_one(writer, shape, name)
        raise CannotWrite("several, or maxContains, beside prefixItems or maxItems", keywords, without)
    wanted = sorted(shape.contains, key=lambda entry: (sorted(entry[0]), entry[1], entry[2] or 0))
    start = 0
    counters = []  # (first bit, number of bits)
    for _, fewest, most in wanted:
        bits = fewest if most is None else most
        counters.append((start, bits))
        start += bits
    length = shape.longest if shape.longest is not None else shape.shortest
    if start + length > _BITS:
        raise CannotWrite(f"more than {_BITS} items to be counted", keywords, without)
    complete = [
        f"bit_set({first + fewest - 1})" for (first, _), (_, fewest, _) in zip(counters, wanted, strict=True) if fewest
    ]
    if shape.shortest:
        complete.append(f"bit_set({start + shape.shortest - 1})")
    counters.append((start, length))
    items = []
    endless = shape.rest.union(*(_opposite(node) for node, _, most in wanted if most is not None))
    if any(most is not None for _, _, most in wanted) and not writer.reach.is_known(endless):
        raise CannotWrite("maxContains of items that are all contained", keywords, without)
    for which in product((False, True), repeat=len(wanted)):
        node = shape.rest
        for counts, (wish, _, most) in zip(which, wanted, strict=True):
            if counts:
                node |= wish
            elif most is not None:
                node |= _opposite(wish)
        if not writer.reach.is_known(node):
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


def _containing_one(writer: "LarkWriter", shape: Array, name: str) -> str:
    """Items of which ``fewest`` must satisfy a further node, where their places are limited.

    A rule for each place of the prefix and one for all places behind it. The first bits count the items that satisfy
    the node, the next ones the others. Another item may be written while places enough remain.
    """
    ((wish, fewest, _),) = shape.contains
    without = replace(shape, contains=frozenset())
    if not fewest:
        return array_rule(writer, without, name)
    prefix = shape.prefix[: shape.longest]
    ends = [place for place, node in enumerate(prefix) if not writer.reach.is_productive(node)]
    prefix = prefix[: ends[0]] if ends else prefix
    is_closed = bool(ends) or not writer.reach.is_productive(shape.rest)
    longest = len(prefix) if is_closed else shape.longest
    wishes, others = fewest, 0  # the bits of the two counters
    if longest is not None:
        wishes, others = longest, longest - fewest
    elif shape.shortest > fewest:
        wishes, others = shape.shortest, shape.shortest
    if wishes + others > _BITS:
        raise CannotWrite(f"more than {_BITS} items to be counted", ("contains", "minContains"), without)
    complete = [f"bit_set({fewest - 1})"]
    if shape.shortest > fewest:
        complete.append(f"bit_count_ge([0:{wishes + others}], {shape.shortest})")
    nodes = [*prefix, *([] if is_closed else [shape.rest])]
    fits = [writer.reach.is_productive(node | wish) for node in nodes]
    for place, node in enumerate(nodes):
        onward = f"{name}_r{min(place + 1, len(prefix))}"
        due = _due(place, fits, fewest, len(prefix), longest)
        items = _counting(f"{writer.rule(node)} ws {onward}", wishes, others, due, is_bounded=longest is not None)
        if fits[place]:
            items += _counting(f"{writer.rule(node | wish)} ws {onward}", 0, wishes, [], is_bounded=longest is not None)
        writer.add_rule(f"{name}_v{place}::_: " + " | ".join(items))
    for place in range(1 if prefix else 0, len(prefix) + 1):
        ways = [f'"]"{only_if(complete)}'] if place >= min(shape.shortest, len(prefix)) else []
        if place < len(nodes):
            is_bounded = longest is not None and place == len(prefix)
            more = [f"bit_count_lt([0:{wishes + others}], {longest})"] if is_bounded else []
            ways.append(f'"," ws {name}_v{place}::_{only_if(more)}')
        writer.add_rule(f"{name}_r{place}::_: {' | '.join(ways)}")
    return f'"[" ws {name}_v0::0x0'


def _counting(item: str, first: int, bits: int, conditions: list[str], *, is_bounded: bool) -> list[str]:
    """An item that sets the next bit of a counter; past the last one only if the counter is not bounded."""
    ways = []
    for bit in range(first, first + bits):
        behind = [f"bit_set({bit - 1})"] if bit > first else []
        ways.append(f"{item}::set_bit({bit}){only_if([f'bit_clear({bit})', *behind, *conditions])}")
    if not is_bounded:
        full = [f"bit_set({first + bits - 1})"] if bits else []
        ways.append(f"{item}::_{only_if([*full, *conditions])}")
    return ways


def _due(place: int, fits: list[bool], fewest: int, prefix: int, longest: int | None) -> list[str]:
    """The condition under which an item that does not count may stand here: what is due has a place behind it."""
    if len(fits) > prefix and fits[prefix]:
        if place >= prefix or longest is None:
            return []  # the counter of the others is as long as they may be many
        later = sum(fits[place + 1 : prefix]) + longest - prefix
    else:
        later = sum(fits[place + 1 : prefix])
    return [f"bit_set({fewest - later - 1})"] if fewest > later else []


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
