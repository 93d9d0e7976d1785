"""Writes a plan (a grammar as plain data) as Lark text.

Structure becomes rules; strings and numbers become terminals.

nodes[1] = (ArrayPlan(rest=2),)     nodes[2] = (Boolean(),)

n0: "[" ws n0_0_i0 "]"     n0_0_i0: (a0 ws ("," ws a0 ws)*)?     a0: "false" | "true"
"""

from constrained_k2.grammar.lark.arguments import ARGUMENTS_FORM, XTML_PREAMBLE
from constrained_k2.grammar.lark.arrays import array_body
from constrained_k2.grammar.lark.objects import JSON_FORM, object_body
from constrained_k2.grammar.lark.rules import Rules
from constrained_k2.grammar.lark.terminals import NO_FORCING, NUMBER, SIGN_APART, preamble
from constrained_k2.grammar.plan.nodes import ArrayPlan, CountedItems, ObjectPlan, Plan, UnequalValues


def print_plan(plan: Plan) -> str:
    """Return the grammar of a plan as Lark."""
    rules = Rules(plan)
    lines = [f"start: {rules.rule(plan.root)}"]
    while rules.waiting:
        number = rules.waiting.pop()
        name = rules.names[number]
        alternatives = [_body(rules, number, index, name) for index in range(len(plan.nodes[number].alternatives))]
        lines.append(f"{name}: {rules.union(number, alternatives)}")
    header = [NO_FORCING] if plan.is_xtml or plan.has_long_texts else []
    body = "\n".join([*header, *lines, *rules.helpers, *rules.lines()])
    preface = preamble(body, SIGN_APART if plan.signs_apart else NUMBER)
    return f"{body}\n{preface}{XTML_PREAMBLE if plan.is_xtml else ''}"


def _body(rules: Rules, number: int, index: int, name: str) -> str:
    one, own = rules.plan.nodes[number].alternatives[index], f"{name}_{index}"
    if isinstance(one, ObjectPlan):
        is_arguments = rules.plan.is_xtml and number == rules.plan.root
        return object_body(rules, one, own, ARGUMENTS_FORM if is_arguments else JSON_FORM)
    if isinstance(one, ArrayPlan | UnequalValues | CountedItems):
        return array_body(rules, one, own)
    return rules.leaf(number, one)
