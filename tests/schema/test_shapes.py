"""Shapes without an engine: meeting them, negating schemas, and what is left unevaluated, against jsonschema."""

import json
import re
from fractions import Fraction
from itertools import product
from typing import Any

import jsonschema
import pytest

from constrained_k2 import SchemaTooCostly, UnsupportedSchema
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.instances import is_instance
from constrained_k2.schema.normalize import Normalizer
from constrained_k2.schema.shapes import (
    ANY,
    EVERYTHING,
    NEVER,
    Array,
    Boolean,
    KeyMap,
    Node,
    Null,
    Number,
    Object,
    Shape,
    String,
    meet,
    tighten,
    value_of,
    with_value,
    without_key,
)
from tests.kit.format_oracles import FORMAT_CHECKER
from tests.schema.test_cases import CASES
from tests.schema.universe import UNIVERSE

ITEM: Node = frozenset({("#/$defs/number", True)})
OTHER: Node = frozenset({("#/$defs/string", False)})
DEFINITIONS = {"$defs": {"number": {"type": "number"}, "string": {"type": "string"}}}
SHAPES: list[Shape] = [
    *EVERYTHING,
    Boolean(frozenset({True})),
    Boolean(frozenset({False})),
    *(tighten(number) or Null() for number in (
        Number(integer=True),
        Number(fraction=True),
        Number(low=Fraction(1)),
        Number(low=Fraction(1), low_open=True, high=Fraction(3), high_open=True),
        Number(high=Fraction(3, 2)),
        Number(multiple=Fraction(1, 2)),
        Number(multiple=Fraction(3, 4)),
    )),
    String(shortest=1),
    String(longest=1),
    String(patterns=frozenset({"^a"})),
    String(absent=frozenset({"b"})),
    String(excluded=frozenset({"a", ""})),
    Array(prefix=(ITEM,)),
    Array(prefix=(ANY, OTHER), rest=ITEM),
    Array(rest=OTHER, shortest=1, longest=2),
    Array(contains=frozenset({(ITEM, 1, None)})),
    Array(contains=frozenset({(OTHER, 0, 1)})),
    Array(unique=True),
    Array(rest=NEVER),
    Object(required=frozenset("a")),
    Object(fewest=2),
    Object(most=1),
    Object(maps=frozenset({KeyMap((("a", ITEM),), (("[bc]", OTHER),), NEVER)})),
    without_key("b"),
    with_value("c", ITEM),
]  # fmt: skip


def normalizer(schema: Any) -> Normalizer:
    return Normalizer(SchemaDocument(schema), lambda pattern, text: bool(re.search(pattern, text)))


@pytest.mark.parametrize("one", SHAPES, ids=[f"{place}-{shape.kind}" for place, shape in enumerate(SHAPES)])
def test_a_meeting_has_the_instances_of_both(one: Shape) -> None:
    nodes = normalizer(DEFINITIONS)
    for other in SHAPES:
        met = meet(one, other) if one.kind == other.kind else None
        for value in UNIVERSE:
            in_both = is_instance(nodes, one, value) and is_instance(nodes, other, value)
            assert (met is not None and is_instance(nodes, met, value)) == in_both, (other, value)
        assert (meet(other, one) if one.kind == other.kind else None) == met


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Boolean(frozenset({True})), Boolean(frozenset({False}))),
        (Number(low=Fraction(2)), Number(high=Fraction(1))),
        (Number(low=Fraction(1), low_open=True), Number(high=Fraction(1))),
        (Number(integer=True), Number(fraction=True)),
        (Number(low=Fraction(1, 4), high=Fraction(3, 4)), Number(integer=True)),
        (String(shortest=2), String(longest=1)),
        (Array(shortest=2), Array(longest=1)),
        (Object(fewest=2), Object(most=1)),
        (Object(required=frozenset("ab")), Object(most=1)),
        (Null(), Boolean()),
    ],
)
def test_contradictions_have_no_meeting(one: Shape, other: Shape) -> None:
    assert meet(one, other) is None


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), ({"a": 1, "b": 2}, {"b": 2.0, "a": 1}), ([[0.0]], [[0]])])
def test_equal_values_have_equal_shapes(one: Any, other: Any) -> None:
    assert value_of(one) == value_of(other)


@pytest.mark.parametrize(("one", "other"), [(1, True), (0, False), (0, None), ("1", 1), ([], {}), (2**53 + 1, 2**53)])
def test_different_values_have_different_shapes(one: Any, other: Any) -> None:
    assert value_of(one) != value_of(other)


SUBSCHEMAS: list[Any] = [
    True, False, {"type": "string"}, {"type": ["integer", "null"]}, {"minimum": 1}, {"exclusiveMaximum": 2},
    {"enum": ["a", 1, [], {}]}, {"const": 1}, {"minLength": 1, "maxLength": 2}, {"pattern": "^a"},
    {"required": ["a"]}, {"properties": {"a": {"const": 1}}}, {"minProperties": 1}, {"maxProperties": 1},
    {"items": {"const": 1}}, {"prefixItems": [{"const": 1}, {"type": "string"}]}, {"contains": {"const": "a"}},
    {"minItems": 2}, {"contains": {"const": 1}, "minContains": 2}, {"dependentRequired": {"a": ["b"]}},
]  # fmt: skip
COMBINED = [
    *({"allOf": [one, {"not": other}]} for one, other in product(SUBSCHEMAS, SUBSCHEMAS[2:])),
    *({"oneOf": [one, other]} for one, other in product(SUBSCHEMAS[2:], SUBSCHEMAS[2:])),
    *({"if": one, "then": other} for one, other in product(SUBSCHEMAS[2:], SUBSCHEMAS[1:])),
]


@pytest.mark.parametrize("case", CASES)
def test_every_value_is_an_instance_of_the_schema_or_of_its_negation(case: dict[str, Any]) -> None:
    compare(case["schema"])


@pytest.mark.slow
def test_combined_schemas() -> None:
    for schema in COMBINED:
        compare(schema)


EVALUATED: list[Any] = [
    {"properties": {"a": {}}},
    {"patternProperties": {"^[ab]$": {}}},
    {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
    {"anyOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}]},
    {"oneOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"properties": {"b": {"const": "a"}}}]},
    {"if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {"properties": {"b": {}}}},
    {"if": {"required": ["a"]}, "else": {"properties": {"b": {}}}, "properties": {"a": {}}},
    {"dependentSchemas": {"a": {"properties": {"a": {}, "b": {}}}}},
    {"not": {"properties": {"a": {"const": 1}}}},
    {"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"a": {}}, "additionalProperties": {"type": "string"}}}},
    {"allOf": [{"properties": {"a": {}}, "unevaluatedProperties": {"type": "string"}}]},
    {"prefixItems": [{"const": 1}]},
    {"allOf": [{"prefixItems": [{}]}, {"prefixItems": [{}, {"const": "a"}]}]},
    {"anyOf": [{"prefixItems": [{"const": 1}]}, {"prefixItems": [{}, {"const": "a"}]}]},
    {"contains": {"type": "string"}},
    {"contains": {"const": 1}, "minContains": 2},
    {"if": {"minItems": 2}, "then": {"prefixItems": [{}, {}]}, "else": {"prefixItems": [{}]}},
    {"items": {"type": "string"}},
]


@pytest.mark.parametrize("keyword", ["unevaluatedProperties", "unevaluatedItems"])
@pytest.mark.parametrize("rest", [False, {"type": "null"}])
@pytest.mark.parametrize("schema", EVALUATED, ids=json.dumps)
def test_what_is_left_unevaluated(schema: Any, keyword: str, rest: Any) -> None:
    compare(schema | {keyword: rest})


def compare(schema: Any) -> None:
    """Every value is in the shapes of a schema or of its negation as jsonschema has it, where nothing is noted."""
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    validator = kind(schema, format_checker=FORMAT_CHECKER)
    for holds in (True, False):
        nodes, root = normalizer(schema), frozenset({("#", holds)})
        try:
            nodes.shapes(root)
        except (SchemaTooCostly, UnsupportedSchema):
            pytest.fail(f"no shapes for {schema}")
        for value in UNIVERSE:
            found, valid = nodes.is_instance(root, value), validator.is_valid(value) == holds
            statuses = {status for noted in nodes.notes.found.values() for status, _ in noted}
            if "relaxed" not in statuses:
                assert valid or not found, (schema, value, holds)
            if not statuses:
                assert found or not valid, (schema, value, holds)
