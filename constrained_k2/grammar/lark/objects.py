"""Writes the Lark rules of objects with keys in any order: a rule parameter records the keys so far.

The parameter has 64 bits; ``set_bit`` sets one, ``bit_clear`` tests one.

o:     "{" ws o_f::0x0
o_f::_ : "}" %if COMPLETE | o_kv::_                                    the first member, or the end
o_kv::_: KEY_A ws ":" ws VALUE_A ws o_r::set_bit(0) %if bit_clear(0) | …   one member; sets its bit
o_r::_ : "}" %if COMPLETE | "," ws o_kv::_                             another member, or the end

Arguments in XTML (:mod:`~constrained_k2.grammar.lark.arguments`) use these rules with other delimiters.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from constrained_k2.grammar.lark.rules import Rules
from constrained_k2.grammar.lark.terminals import count_at_least, count_below, key, only_if
from constrained_k2.grammar.plan.nodes import Extra, ObjectPlan


@dataclass(frozen=True, slots=True)
class ObjectForm:
    """The spelling of an object's ends, separators and members."""

    opening: str  # before the members
    comma: str  # between two members
    closing: str  # after the members
    empty: str  # an object without members
    head: str  # before a member's key
    key: Callable[[str], str]  # returns the grammar of a declared key
    members: Callable[[Rules, str, int], list[str]]  # returns a member's alternatives, by its key's grammar and node


JSON_FORM = ObjectForm(
    '"{" ws ',
    '"," ws ',
    '"}"',
    '"{" ws "}"',
    "",
    key,
    lambda rules, text, node: [f'{text} ws ":" ws {rules.rule(node)} ws'],
)


def object_body(rules: Rules, plan: ObjectPlan, name: str, form: ObjectForm = JSON_FORM) -> str:
    """Return the body of an object's rule, and add its helper rules."""
    keys = [rules.terminal(extra.keys) for extra in plan.extras]
    members = [*_members(rules, plan, form), *_extras(rules, plan, keys, form)]
    if not members:
        return form.empty
    ends = f"{form.closing}{only_if(_complete(plan))} | "
    rules.helpers.append(f"{name}_f::_: {ends}{name}_kv::_")
    if form.head:  # the head comes once, before all alternatives
        rules.helpers.append(f"{name}_kv::_: {form.head}{name}_m::_")
    rules.helpers += [
        f"{name}_{'m' if form.head else 'kv'}::_: "
        + "\n  | ".join(f"{each} {name}_r::{after}" for each, after in members),
        f"{name}_r::_: {ends}{form.comma}{name}_kv::_{only_if(_another(plan))}",
    ]
    if not plan.leading:
        return f"{form.opening}{name}_f::0x0"
    leading = (each for one in plan.leading for each in form.members(rules, form.key(one.key), one.node))
    return f"{form.opening}{''.join(f'{form.head}{each} {form.comma}' for each in leading)}{name}_kv::0x0"


def _members(rules: Rules, plan: ObjectPlan, form: ObjectForm) -> Iterator[tuple[str, str]]:
    """Yield the alternatives for members under declared keys, each with the parameter of the rule after it."""
    room = _has_room(plan)
    for member in plan.members:
        conditions = [] if member.bit is None else [f"bit_clear({member.bit})"]
        if member.bit is None or member.bit >= plan.required:
            conditions += room
        own = 0 if member.bit is None else 1 << member.bit
        after = f"{_setting(own | member.wanted)}{only_if(conditions)}"
        for each in form.members(rules, form.key(member.key), member.node):
            yield each, after


def _extras(rules: Rules, plan: ObjectPlan, keys: list[str], form: ObjectForm) -> Iterator[tuple[str, str]]:
    """Yield the alternatives for members under undeclared keys. If such members count, the n-th sets the n-th slot."""
    for extra, text in zip(plan.extras, keys, strict=True):
        alternatives = form.members(rules, text, extra.node)
        for after in _after_extra(plan, extra):
            for each in alternatives:
                yield each, after


def _after_extra(plan: ObjectPlan, extra: Extra) -> Iterator[str]:
    room = [*_has_room(plan), *(f"bit_clear({bit})" for bit in extra.clear)]
    first, end = plan.tracked, plan.tracked + plan.slots
    for bit in range(first, end):
        before = [f"bit_clear({bit})", *([f"bit_set({bit - 1})"] if bit > first else [])]
        yield f"{_setting(1 << bit | extra.wanted)}{only_if([*before, *room])}"
    if plan.room is None:
        before = [f"bit_set({end - 1})"] if plan.slots else []
        yield f"{_setting(extra.wanted)}{only_if([*before, *room])}"


def _setting(mask: int) -> str:
    """Return the parameter of the next rule: the current parameter with the bits of ``mask`` set."""
    if not mask & (mask - 1):
        return f"set_bit({mask.bit_length() - 1})" if mask else "_"
    return f"bit_or({mask:#x})"


def _has_room(plan: ObjectPlan) -> list[str]:
    """Return the condition under which an optional member may follow."""
    return [count_below(f"[{plan.required}:{plan.tracked + plan.slots}]", plan.room)] if plan.room else []


def _complete(plan: ObjectPlan) -> list[str]:
    """Return the conditions under which the object may end."""
    conditions = [f"is_ones([0:{plan.required}])"] if plan.required else []
    conditions += [count_at_least(f"[0:{plan.tracked + plan.counted}]", plan.fewest)] if plan.fewest else []
    first = plan.tracked + plan.slots
    return [*conditions, f"is_ones([{first}:{first + plan.wanted}])"] if plan.wanted else conditions


def _another(plan: ObjectPlan) -> list[str]:
    """Return the condition under which another member may follow: without it a comma could be a dead end."""
    if plan.room is None and plan.has_open_keys:
        return []
    required, room, end = plan.required, plan.room, plan.tracked + plan.slots
    limit = end - required if room is None else room if plan.extras else min(end - required, room)
    alternatives = [count_below(f"[0:{required}]", required)] if required else []
    alternatives += [count_below(f"[{required}:{end}]", limit)] if limit else []
    return [alternatives[0] if len(alternatives) == 1 else f"or({alternatives[0]}, {alternatives[1]})"]
