"""Arrays: prefix items, the rest, counts, ``contains``, and unique items.

{"prefixItems": [A], "items": B, "maxItems": 3}     an A, then up to two of B, each behind a comma
"""

from dataclasses import replace
from itertools import accumulate, product
from typing import TYPE_CHECKING

from constrained_k2.grammar.lark.array_states import counted_rule
from constrained_k2.grammar.lark.leaves import note_integers
from constrained_k2.grammar.lark.terminals import BITS, NoExactGrammar, count_at_least, count_below, only_if
from constrained_k2.grammar.lark.unique_items import compared_items
from constrained_k2.schema.shapes import Array, Number, negated

if TYPE_CHECKING:
    from constrained_k2.grammar.lark.writer import LarkWriter

_EMPTY = '""'
_MAX_UNROLLED = 16
_MAX_CONTAINS = 3


def array_rule(writer: "LarkWriter", shape: Array, name: str) -> str:
    """Return the body of an array's rule; its helper rules are added to the writer."""
    if shape.unique and (shape.longest is None or shape.longest > 1):
        values = None if shape.prefix or shape.contains else writer.productivity.values(shape.rest)
        if values is not None and len(values) <= BITS:
            return _of_few_values(writer, shape, name, list(dict.fromkeys(map(writer.value_text, values))))
        shape = compared_items(writer, shape)
    if shape.contains:
        return _containing(writer, shape, name)
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


def _of_few_values(writer: "LarkWriter", shape: Array, name: str, values: list[str]) -> str:
    """Return the body for unequal items of a small set, with one bit for each value."""
    if any(isinstance(one, Number) for one in writer.productivity.shapes(shape.rest)):
        array, writer.node = writer.node, shape.rest
        note_integers(writer)
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
    return _loop(writer, name, items, complete, [count_below("_", most)])


def _containing(writer: "LarkWriter", shape: Array, name: str) -> str:
    """Return the body for items that must satisfy further nodes a limited number of times.

    Each ``contains`` has a run of bits as its counter, and so have all items together if their number is limited.
    """
    without = replace(shape, contains=frozenset())
    keywords = ("contains", "minContains", "maxContains")
    if len(shape.contains) > _MAX_CONTAINS:
        problem = NoExactGrammar(f"more than {_MAX_CONTAINS} contains in one array", keywords, without)
        return counted_rule(writer, shape, name, problem)
    has_most = any(most is not None for _, _, most in shape.contains)
    is_limited = shape.longest is not None and any(fewest for _, fewest, _ in shape.contains)
    if len(shape.contains) == 1 and not has_most and (shape.prefix or is_limited):
        return _containing_one(writer, shape, name)
    if shape.prefix or is_limited or (len(shape.contains) > 1 and has_most):  # one may leave no item for another
        reason = "several contains, or maxContains, combined with each other, prefixItems or maxItems: too many states"
        return counted_rule(writer, shape, name, NoExactGrammar(reason, keywords, without))
    wanted = shape.wishes
    sizes = [fewest if most is None else most for _, fewest, most in wanted]
    start = sum(sizes)
    length = shape.shortest if shape.longest is None else shape.longest
    if start + length > BITS:
        problem = NoExactGrammar(f"more than {BITS} items cannot be counted", keywords, without)
        return counted_rule(writer, shape, name, problem)
    counters = list(zip(accumulate(sizes, initial=0), [*sizes, length], strict=True))  # (first bit, number of bits)
    limits = [*(most for _, _, most in wanted), shape.longest]
    needed = [*(fewest for _, fewest, _ in wanted), shape.shortest]
    complete = [f"bit_set({first + fewest - 1})" for (first, _), fewest in zip(counters, needed, strict=True) if fewest]
    items = []
    uncounted = shape.rest.union(*(negated(node) for node, _, most in wanted if most is not None))
    if any(most is not None for _, _, most in wanted) and not writer.productivity.analyze(uncounted):
        problem = NoExactGrammar("maxContains where every item counts", keywords, without)
        return counted_rule(writer, shape, name, problem)
    for which in product((False, True), repeat=len(wanted)):
        parts = [(counts, wish, most) for counts, (wish, _, most) in zip(which, wanted, strict=True)]
        wishes = (wish if counts else negated(wish) for counts, wish, most in parts if counts or most is not None)
        node = shape.rest.union(*wishes)
        if any(counts and most == 0 for counts, _, most in parts) or not writer.productivity.analyze(node):
            continue
        step = f"{name}_r"
        for number, counts in reversed(list(enumerate((*which, True)))):
            if counts and counters[number][1]:
                rule = f"{name}_c{''.join(str(int(w)) for w in which)}_{number}"
                ways = _counting('"" ' + step, *counters[number], [], is_bounded=limits[number] is not None)
                writer.rules.append(f"{rule}::_: " + " | ".join(ways))
                step = rule
        # Before the item: behind it, a counter without room would be a dead end.
        room = [
            f"bit_clear({counters[number][0] + most - 1})"
            for number, (counts, _, most) in enumerate(parts)
            if counts and most
        ]
        items.append(f"{writer.rule(node)} ws {step}::_{only_if(room)}")
    if not items:
        return '"[" ws "]"'
    more = [f"bit_clear({start + length - 1})"] if shape.longest is not None else []
    return _loop(writer, name, items, complete, more)


def _containing_one(writer: "LarkWriter", shape: Array, name: str) -> str:
    """Return the body if ``fewest`` items must satisfy a further node, with prefixItems or maxItems.

    Each prefix item has a rule, and all items after them share one. The first bits count the items that satisfy the
    node, the next ones the others. An item that does not count is allowed while enough items may follow.
    """
    ((wish, fewest, _),) = shape.contains
    without = replace(shape, contains=frozenset())
    if not fewest:
        return array_rule(writer, without, name)
    prefix, longest = writer.productivity.items(shape)
    is_bounded = longest is not None
    wishes, others = fewest, 0  # the bits of the two counters
    if longest is not None:
        wishes, others = longest, longest - fewest
    elif shape.shortest > fewest:
        wishes, others = shape.shortest, shape.shortest
    if wishes + others > BITS:
        reason, keywords = f"more than {BITS} items cannot be counted", ("contains", "minContains")
        return counted_rule(writer, shape, name, NoExactGrammar(reason, keywords, without))
    complete = [f"bit_set({fewest - 1})"]
    complete += [count_at_least(f"[0:{wishes + others}]", shape.shortest)] if shape.shortest > fewest else []
    nodes = [*prefix, *([] if longest == len(prefix) else [shape.rest])]
    fits = [writer.productivity.is_productive(node | wish) for node in nodes]
    for index, node in enumerate(nodes):
        onward = f"{name}_r{min(index + 1, len(prefix))}"
        later = _expects_later(index, fits, fewest, len(prefix), longest)
        items = _counting(f"{writer.rule(node)} ws {onward}", wishes, others, later, is_bounded=is_bounded)
        if fits[index]:
            items += _counting(f"{writer.rule(node | wish)} ws {onward}", 0, wishes, [], is_bounded=is_bounded)
        writer.rules.append(f"{name}_v{index}::_: " + " | ".join(items))
    for index in range(1 if prefix else 0, len(prefix) + 1):
        ways = [f'"]"{only_if(complete)}'] if index >= min(shape.shortest, len(prefix)) else []
        if index < len(nodes):
            is_counted = longest is not None and index == len(prefix)
            more = [count_below(f"[0:{wishes + others}]", longest or 0)] if is_counted else []
            ways.append(f'"," ws {name}_v{index}::_{only_if(more)}')
        writer.rules.append(f"{name}_r{index}::_: {' | '.join(ways)}")
    return f'"[" ws {name}_v0::0x0'


def _counting(item: str, first: int, bits: int, conditions: list[str], *, is_bounded: bool) -> list[str]:
    """Return an item that sets a counter's next bit; past the last bit only if the counter is not bounded."""
    ways = []
    for bit in range(first, first + bits):
        before = [f"bit_set({bit - 1})"] if bit > first else []
        ways.append(f"{item}::set_bit({bit}){only_if([f'bit_clear({bit})', *before, *conditions])}")
    if not is_bounded:
        full = [f"bit_set({first + bits - 1})"] if bits else []
        ways.append(f"{item}::_{only_if([*full, *conditions])}")
    return ways


def _expects_later(index: int, fits: list[bool], fewest: int, prefix: int, longest: int | None) -> list[str]:
    """Return the condition for an item that does not count: enough items after it can satisfy the node."""
    later = sum(fits[index + 1 : prefix])
    if len(fits) > prefix and fits[prefix]:
        if index >= prefix or longest is None:
            return []  # the counter of the others limits them
        later += longest - prefix
    return [f"bit_set({fewest - later - 1})"] if fewest > later else []


def _loop(writer: "LarkWriter", name: str, items: list[str], complete: list[str], more: list[str]) -> str:
    writer.rules.append(f'{name}_f::_: "]"{only_if(complete)}' + (f" | {name}_v::_" if items else ""))
    if items:
        writer.rules.append(f"{name}_v::_: " + "\n  | ".join(items))
        writer.rules.append(f'{name}_r::_: "]"{only_if(complete)} | "," ws {name}_v::_{only_if(more)}')
    return f'"[" ws {name}_f::0x0'
