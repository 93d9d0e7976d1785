"""The grammars of objects and arrays, exhaustively over small values: exactly the valid ones, in any property order."""

import json
from typing import Any

import jsonschema
import pytest

from tests.kit.compilers import narrowed
from tests.kit.data import table
from tests.kit.grammars import accepts, compiled
from tests.schema.test_cases import spellings
from tests.schema.universe import UNIVERSE

TABLE = table(__file__)
OBJECTS: list[dict[str, Any]] = TABLE["object"]


@pytest.mark.parametrize(
    "schema",
    [({} if kind == "any type" else {"type": kind}) | schema for kind, schemas in TABLE.items() for schema in schemas],
    ids=json.dumps,
)
def test_exactly_the_valid_values_are_written(schema: dict[str, Any]) -> None:
    grammar = compiled(schema)
    assert not narrowed(grammar.coverage) and not grammar.coverage.relaxed, grammar.coverage
    validator = jsonschema.Draft202012Validator(schema)
    for value in UNIVERSE:
        valid = validator.is_valid(value)
        assert all(accepts(grammar, *spelling) == valid for spelling in spellings(value)), value
