"""Writes the Lark rules of arrays: prefix items, repetition, ``uniqueItems`` and ``contains``.

ArrayPlan(prefix=(A,), rest=B, most=3)     nothing, or an A and up to two Bs, with commas between them

``contains`` becomes one rule per state. If the items have few possible values, ``uniqueItems`` becomes one bit per
value; else a matcher compares the items.
"""

from constrained_k2.grammar.lark.rules import Rules
from constrained_k2.grammar.lark.terminals import count_at_least, count_below, only_if
from constrained_k2.grammar.lark.values import value_text
from constrained_k2.grammar.plan.nodes import ArrayPlan, CountedItems, UnequalValues

_EMPTY = '""'
_MAX_UNROLLED = 16


def array_body(rules: Rules, plan: ArrayPlan | UnequalValues | CountedItems, name: str) -> str:
    """Return the body of an array's rule, and add its helper rules."""
    if isinstance(plan, CountedItems):
        return _counted(rules, plan, name)
    if isinstance(plan, UnequalValues):
        return _unequal(rules, plan, name)
    return f'"[" ws {_items(rules, plan, name)} "]"'


def _items(rules: Rules, plan: ArrayPlan, name: str) -> str:
    """Return the name of the items' rule: a rule for each prefix item, then a bounded repetition of the rest."""
    for index, node in enumerate(plan.prefix):
        comma = '"," ws ' if index else ""
        end = f" | {_EMPTY}" if index >= plan.fewest else ""
        rules.helpers.append(f"{name}_i{index}: {comma}{rules.rule(node)} ws {name}_i{index + 1}{end}")
    rules.helpers.append(f"{name}_i{len(plan.prefix)}: {_rest(rules, plan, f'{name}_k')}")
    return f"{name}_i0"


def _rest(rules: Rules, plan: ArrayPlan, name: str) -> str:
    """Return a repetition of the items after the prefix, with a comma before each item except the array's first."""
    if plan.rest is None:
        return _EMPTY
    first = not plan.prefix
    least = max(plan.fewest - len(plan.prefix), 0)
    most = None if plan.most is None else plan.most - len(plan.prefix)
    item, limit = f"{rules.rule(plan.rest)} ws", max(least, most or 0)
    if limit > _MAX_UNROLLED:  # counted by a rule's parameter: the cost does not grow with the count
        bits = f"[0:{limit.bit_length()}]"
        more = [f'"," ws {item} {name}::incr({bits}) %if lt({bits}, {limit})']
        if most is None:
            more.append(f'"," ws {item} {name}::_ %if ge({bits}, {least})')
        rules.helpers.append(f"{name}::_: " + " | ".join([*more, f"{_EMPTY} %if ge({bits}, {least})"]))
        if not first:
            return f"{name}::0x0"
        return f"{item} {name}::0x1" if least else f"({item} {name}::0x1)?"
    if most == 1 and first:  # LLGuidance rejects the repetition {0,0}
        return item if least else f"({item})?"
    fewest, limits = max(least - first, 0), "" if most is None else most - first
    times = f"{{{fewest},{limits}}}" if fewest or most is not None else "*"
    others = f'("," ws {item}){times}'
    if not first:
        return others
    return f"{item} {others}" if least else f"({item} {others})?"


def _unequal(rules: Rules, plan: UnequalValues, name: str) -> str:
    """Return the body of an array with ``uniqueItems`` and few possible values, with one bit for each value."""
    texts = (value_text(one.value, rules.choice, signs_apart=rules.plan.signs_apart) for one in plan.values)
    values = list(dict.fromkeys(texts))
    if not values:
        return '"[" ws "]"'
    complete = [count_at_least("_", plan.fewest)] if plan.fewest else []
    most = len(values) if plan.most is None else min(plan.most, len(values))
    room = [count_below("_", most)] if most < len(values) else []
    items = [
        f"{value} ws {name}_r::set_bit({bit}){only_if([f'bit_clear({bit})', *room])}"
        for bit, value in enumerate(values)
    ]
    rules.helpers += [
        f'{name}_f::_: "]"{only_if(complete)} | {name}_v::_',
        f"{name}_v::_: " + "\n  | ".join(items),
        f'{name}_r::_: "]"{only_if(complete)} | "," ws {name}_v::_{only_if([count_below("_", most)])}',
    ]
    return f'"[" ws {name}_f::0x0'


def _counted(rules: Rules, plan: CountedItems, name: str) -> str:
    """Return the body of an array with ``contains``, and add a helper rule for each state.

    {"contains": {"const": 1}}     s0: any s1 | 1 s2     s1: any s1 | 1 s2     s2: any s2 | "]"     (commas left out)
    """
    for number, state in enumerate(plan.states):
        alternatives = ['"]"'] if state.may_end else []
        comma = '"," ws ' if number else ""
        for following, nodes in state.following:
            items = [f"{rules.rule(node)} ws" for node in nodes]
            item = items[0] if len(items) == 1 else rules.choice(items)
            alternatives.append(f"{comma}{item} {name}_s{following}")
        rules.helpers.append(f"{name}_s{number}: {' | '.join(alternatives)}")
    return f'"[" ws {name}_s0'
