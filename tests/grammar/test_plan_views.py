"""Positions and masks have their nodes by number: each belongs to the plan's node of that number, which equal text does not show."""

import json
from typing import Any

import pytest

from constrained_k2 import Vocabulary
from constrained_k2.engines.llguidance.direct.rules import direct_model
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.grammar_text import Patterns, schema_grammar
from constrained_k2.engines.llguidance.position import Open, Position, StateKind
from constrained_k2.engines.llguidance.position_tracker import PositionTracker
from constrained_k2.grammar.plan.nodes import (
    Alternative,
    ArrayPlan,
    CountedItems,
    NumberPlan,
    ObjectPlan,
    Plan,
    StringPlan,
    UnequalValues,
)
from constrained_k2.grammar.state_model import AMBIGUOUS, StateModel
from constrained_k2.schema.shapes import Boolean, ListedValue, Null
from constrained_k2.vocabulary.bitmask import allowed_ids
from tests.kit.data import mcp_servers

_DIGITS = frozenset(b"-0123456789")
_EACH = 8  # of the public tools


SCHEMAS: list[Any] = [
    {"properties": {"a": {"anyOf": [{"type": "array"}, {"enum": ["x", 7]}, {"type": "object", "maxProperties": 0}]}}},
    {"properties": {"a": {"type": ["string", "null"], "pattern": "^b"}, "b": {"type": "number", "minimum": 3}}},
    {"properties": {"tree": {"$ref": "#"}, "leaf": {"type": "boolean"}}, "required": ["leaf"]},
    {"properties": {"a": {"prefixItems": [{"const": 1}, {"type": "string"}], "items": {"$ref": "#"}}}},
    {"properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "b": {"contains": {}}}},
    {"additionalProperties": {"type": "object", "properties": {"x": {"const": None}}}},
]


def first_bytes(one: Alternative) -> set[int]:
    """Return the bytes that a value of an alternative begins with; "0" for all numbers."""
    if isinstance(one, ListedValue):
        begun = one.text[0].encode()[0]
        return {ord("0")} if begun in _DIGITS else {begun}
    if isinstance(one, Boolean):
        return {ord("t" if value else "f") for value in one.values}
    if isinstance(one, ArrayPlan | UnequalValues | CountedItems):
        return {ord("[")}
    return {ord({Null: "n", StringPlan: '"', NumberPlan: "0", ObjectPlan: "{"}[type(one)])}


def planned(schema: Any) -> tuple[Plan, StateModel]:
    """Return the plan of a schema inside an object, and its positions."""
    document = {"type": "object", "properties": {"it": {"$ref": "#/$defs/it"}}, "$defs": {"it": schema}}
    source = schema_grammar(json.loads(json.dumps(document).replace('"#"', '"#/$defs/it"')), Patterns(), "forbid")
    assert source.plan is not None and source.model is not None
    return source.plan, source.model


@pytest.fixture(scope="module")
def engine() -> LLGuidanceEngine:
    return LLGuidanceEngine(Vocabulary.of_bytes())


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
def test_masks_and_positions_are_those_of_their_node(schema: Any, engine: LLGuidanceEngine) -> None:
    check_nodes(schema, engine)


def test_masks_and_positions_of_public_tools(engine: LLGuidanceEngine) -> None:
    for tool in [tool for tools in mcp_servers() for tool in tools][::_EACH]:
        check_nodes(tool["function"]["parameters"], engine)


def check_nodes(schema: Any, engine: LLGuidanceEngine) -> None:
    """Assert that the masks and positions of each node of a schema are those of the plan's node of that number."""
    plan, model = planned(schema)
    masks = engine.mask_cache.direct_masks()
    residuals, tracker = masks.residuals(direct_model(plan)), PositionTracker(model, engine.mask_cache.strings)
    outside = (Open(plan.root, is_object=True, keys=1),)
    seen = 0
    for number, node in enumerate(plan.nodes):
        first = set[int]().union(*map(first_bytes, node.alternatives))
        position = Position(StateKind.VALUE, number, outside)
        residual = residuals.of(position)
        row = None if residual is None else masks.allowed(residual)
        if row is not None:
            allowed = {token for token in allowed_ids(row).tolist() if token < 256} - set(b" \n\r\t")
            assert {ord("0") if byte in _DIGITS else byte for byte in allowed} == first, number
            seen += 1
        for byte in first & set(b"{["):
            after = tracker.follow(position, bytes([byte])).open[-1]
            assert after.node == number
            kept = model.nodes[number]
            values = [one for one in node.alternatives if first_bytes(one) == {byte}]
            (one, *others) = values
            if byte == ord("{") and isinstance(one, ObjectPlan) and not others and one.told_by != "more":
                assert kept.object is not None
                children = {member.key: member.node for member in (*one.leading, *one.members)}
                assert {key: child for key, (_, child) in kept.object.values.items()} == children
            elif byte == ord("[") and isinstance(one, ArrayPlan) and not others:
                assert kept.array is not None
                assert (kept.array.prefix, kept.array.item(len(one.prefix))) == (
                    one.prefix,
                    AMBIGUOUS if one.rest is None else one.rest,
                )
            else:
                assert (kept.object if byte == ord("{") else kept.array) is None
    assert seen
