"""Plans the grammar of arrays: prefix items, other items, counts, ``contains`` and ``uniqueItems``.

{"prefixItems": [A], "items": B, "maxItems": 3}     ArrayPlan(prefix=(A,), rest=B, most=3)
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from constrained_k2.grammar.plan.array_states import plan_counted
from constrained_k2.grammar.plan.leaves import INTEGERS
from constrained_k2.grammar.plan.nodes import BITS, ArrayPlan, CountedItems, UnequalValues, Wider
from constrained_k2.grammar.plan.planning import Planning
from constrained_k2.grammar.plan.unique_items import compared_items
from constrained_k2.schema.shapes import Array, Number, value_of


def plan_array(planning: Planning, shape: Array) -> ArrayPlan | UnequalValues | CountedItems | Wider:
    """Plan arrays of one shape."""
    alone = None
    if shape.unique and (shape.longest is None or shape.longest > 1):
        values = None if shape.prefix or shape.contains else planning.productivity.values(shape.rest)
        if values is not None and len(values) <= BITS:
            return _of_few_values(planning, shape, values)
        found = compared_items(planning, shape)
        if isinstance(found, Wider):
            return found
        item, alone = found
        shape = replace(shape, unique=False, rest=item)
    if shape.contains:
        return plan_counted(planning, shape)
    prefix, longest = planning.productivity.items(shape)
    has_rest = longest is None or longest > len(prefix)
    numbers = tuple(map(planning.number, prefix))
    return ArrayPlan(numbers, planning.number(shape.rest) if has_rest else None, shape.shortest, longest, alone)


def _of_few_values(planning: Planning, shape: Array, values: Iterable[Any]) -> UnequalValues:
    if any(isinstance(one, Number) for one in planning.productivity.shapes(shape.rest)):
        planning.note(*INTEGERS, node=shape.rest)
    for value in values:
        planning.note_listed(value, shape.rest)
    return UnequalValues(tuple(map(value_of, values)), shape.shortest, shape.longest)
