"""Plans the grammar of a schema: numbers the schema's nodes, and lists the alternatives of each node.

A shape without an exact grammar is replaced by a wider one, and the keywords that this relaxes are noted.

{"type": ["array", "null"]}     nodes[1] = (Null(), ArrayPlan(rest=0))     nodes[0] is any value
"""

from constrained_k2.grammar.plan.arrays import plan_array
from constrained_k2.grammar.plan.expressions import one_of
from constrained_k2.grammar.plan.item_paths import NOT_TOLD_APART, item_paths
from constrained_k2.grammar.plan.leaves import NumbersSoFar, is_long, is_text, plan_number, plan_string
from constrained_k2.grammar.plan.nodes import (
    ANY_NODE,
    ANY_VALUE,
    Alternative,
    NumberPlan,
    Plan,
    PlanNode,
    StringPlan,
    Wider,
)
from constrained_k2.grammar.plan.objects import plan_arguments, plan_object
from constrained_k2.grammar.plan.planning import Planning
from constrained_k2.grammar.spelling import JSON, RAW, Spelling
from constrained_k2.schema.no_instances import NoInstancesError
from constrained_k2.schema.shapes import (
    NEVER,
    Array,
    Kind,
    ListedValue,
    Node,
    Number,
    Object,
    Shape,
    String,
)
from constrained_k2.schema.undeclared_keys import REASON

# Max listed strings that are alternatives of a rule; more share a terminal. 5,000 took LLGuidance 1.7.6 0.2 s per step.
_MANY_TEXTS = 500
_WITH_INTEGERS: frozenset[Kind] = frozenset({"number", "array", "object"})


def plan_schema(planning: Planning, root: Node, *, is_xtml: bool = False) -> Plan:
    """Plan a node's instances; with ``is_xtml``, its objects as XTML arguments.

    Keywords that are not enforced exactly are in the normalizer's notes.

    Raises:
        NoInstancesError: No value satisfies the node.
    """
    if is_xtml:
        root, _ = planning.normalizer.by_kind(root).get("object", (NEVER, ()))
    if not planning.productivity.analyze(root):
        location = planning.productivity.empty_location(root)
        raise NoInstancesError("no value satisfies this schema", location, "Rewrite it, or leave the tool out")
    number, nodes = planning.number(root), planning.nodes
    nodes[ANY_VALUE] = ANY_NODE
    while planning.waiting:
        waiting = planning.waiting.pop()
        nodes[waiting] = _node(planning, planning.sources[waiting], is_arguments=is_xtml and waiting == number)
    paths, not_found = item_paths(nodes, number)
    for array in not_found:
        planning.note(("uniqueItems",), "relaxed", NOT_TOLD_APART, planning.sources[array])
    planning.settle_notes(is_planned=True)
    return Plan(
        tuple(nodes),
        number,
        is_xtml,
        planning.has_multiples,
        planning.has_open_keys,
        planning.has_long_texts,
        planning.member_count,
        paths,
    )


def _node(planning: Planning, node: Node, *, is_arguments: bool) -> PlanNode:
    planning.node = node
    shapes = list(filter(planning.productivity.has_value, planning.productivity.shapes(node)))
    form, numbers = RAW if node in planning.raw else JSON, NumbersSoFar()
    planned = [_alternative(planning, shape, form, numbers, is_arguments=is_arguments) for shape in shapes]
    if planning.productivity.is_narrowed(node):
        planning.note(("properties",), "narrowed", REASON)
        planning.settle_notes(is_planned=True)
    texts = list(filter(is_text, shapes)) if len(shapes) > _MANY_TEXTS else []
    joins_texts = len(texts) > _MANY_TEXTS
    strings = [one_of(sorted(text.value for text in texts), form)] if joins_texts else []
    strings += (one.expression for one in planned if isinstance(one, StringPlan) and one.is_joined)
    return PlanNode(tuple(planned), _joined(strings) if strings else "", joins_texts, form is RAW)


def _joined(expressions: list[str]) -> str:
    """Return the body of the terminal that a node's strings share."""
    several = list(dict.fromkeys(expressions))
    return " | ".join(f"({one})" for one in several) if len(several) > 1 else several[0]


def _alternative(
    planning: Planning, shape: Shape, form: Spelling, numbers: NumbersSoFar, *, is_arguments: bool
) -> Alternative:
    """Plan a shape; if it has no exact grammar, note that and plan a wider one."""
    while True:
        planned: Alternative | Wider
        match shape:
            case Object():
                planned = plan_arguments(planning, shape) if is_arguments else plan_object(planning, shape)
            case Array():
                planned = plan_array(planning, shape)
            case String() | Number():
                planned = _leaf(planning, shape, form, numbers)
            case ListedValue() if is_arguments:
                planned = plan_arguments(planning, shape)
            case _:
                if isinstance(shape, ListedValue) and shape.value_kind in _WITH_INTEGERS:
                    planning.note_listed(shape.value)
                planned = shape
        planning.settle_notes(is_planned=not isinstance(planned, Wider))
        if not isinstance(planned, Wider):
            return planned
        assert planned.shape != shape, "a wider shape drops a demand"
        planning.note(planned.keywords, "relaxed", planned.reason)
        planning.settle_notes(is_planned=True)
        shape = planned.shape


def _leaf(
    planning: Planning, shape: String | Number, form: Spelling, numbers: NumbersSoFar
) -> StringPlan | NumberPlan | Wider:
    if isinstance(shape, Number):
        planned: StringPlan | NumberPlan | Wider = plan_number(shape, numbers)
    else:
        planned = plan_string(shape, form, planning.effort, planning.can_begin)
    if isinstance(planned, Wider):
        return planned
    for note in planned.notes:
        planning.note(*note)
    if isinstance(planned, NumberPlan):
        planning.has_multiples |= bool(planned.shape.multiple)
    elif planned.expression:
        planning.has_long_texts |= is_long(planned.shape)
    return planned
