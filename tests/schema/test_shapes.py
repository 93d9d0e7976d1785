"""Shapes without an engine: meeting them, negating schemas, and what is left unevaluated, against jsonschema."""

import json
import re
from itertools import combinations_with_replacement, product
from typing import Any

import jsonschema
import pytest

from constrained_k2 import SchemaTooCostly, UnsupportedSchema
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.normalize import Normalizer
from constrained_k2.schema.shapes import value_of
from tests.kit.data import table
from tests.kit.format_oracles import FORMAT_CHECKER
from tests.schema.test_cases import CASES
from tests.schema.universe import UNIVERSE


def normalizer(schema: Any) -> Normalizer:
    return Normalizer(SchemaDocument(schema), lambda pattern, text: bool(re.search(pattern, text)))


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), ({"a": 1, "b": 2}, {"b": 2.0, "a": 1}), ([[0.0]], [[0]])])
def test_equal_values_have_equal_shapes(one: Any, other: Any) -> None:
    assert value_of(one) == value_of(other)


@pytest.mark.parametrize(("one", "other"), [(1, True), (0, False), (0, None), ("1", 1), ([], {}), (2**53 + 1, 2**53)])
def test_different_values_have_different_shapes(one: Any, other: Any) -> None:
    assert value_of(one) != value_of(other)


TABLE: dict[str, list[Any]] = table(__file__)
SUBSCHEMAS = TABLE["combined"]
COMBINED = [
    *({"allOf": [one, other]} for one, other in combinations_with_replacement(SUBSCHEMAS[2:], 2)),
    *({"allOf": [one, {"not": other}]} for one, other in product(SUBSCHEMAS, SUBSCHEMAS[2:])),
    *({"oneOf": [one, other]} for one, other in combinations_with_replacement(SUBSCHEMAS[2:], 2)),
    *({"if": one, "then": other} for one, other in product(SUBSCHEMAS[2:], SUBSCHEMAS[1:])),
]


@pytest.mark.parametrize("case", CASES)
def test_every_value_is_an_instance_of_the_schema_or_of_its_negation(case: dict[str, Any]) -> None:
    compare(case["schema"])


@pytest.mark.slow
def test_combined_schemas() -> None:
    for schema in COMBINED:
        compare(schema)


@pytest.mark.parametrize("keyword", ["unevaluatedProperties", "unevaluatedItems"])
@pytest.mark.parametrize("rest", [False, {"type": "null"}])
@pytest.mark.parametrize("schema", TABLE["evaluated"], ids=json.dumps)
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
