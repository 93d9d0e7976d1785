"""Random schemas against jsonschema: every text that a grammar accepts must be valid."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from constrained_k2 import ConstrainedK2Error
from constrained_k2.schema.budget import check_budget
from tests.kit.budget import tries
from tests.kit.format_oracles import FORMAT_CHECKER
from tests.kit.grammars import accepts, compiled, walk

KEYS = st.sampled_from(["a", "b", "c"])
SCALARS = st.sampled_from([None, True, False, 0, 1, 2, 5, 1.5, "", "a", "ab", "ba", 'a"', "\\", "2024-02-29"])
SIZES = st.integers(0, 3)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=5
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas of a few keywords each, over few keys and values, so that they meet."""
    several = st.lists(inner, min_size=1, max_size=3)
    keywords = st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
            "enum": st.lists(VALUES, min_size=1, max_size=4),
            "const": VALUES,
            "minimum": st.sampled_from([0, 1, 1.5]),
            "exclusiveMinimum": st.sampled_from([0, 1, 1.5]),
            "maximum": st.sampled_from([1, 2, 2.5]),
            "exclusiveMaximum": st.sampled_from([0.5, 1, 2]),
            "multipleOf": st.sampled_from([1, 2, 0.5]),
            "minLength": SIZES,
            "maxLength": SIZES,
            "pattern": st.sampled_from(
                ["^a", "b$", "a|b", "^(ab)*$", "[^a]", '^[^"]*$', "[^\\\\]$", "^a$|b$", "^(?!a)", "^(?=.b)"]
            ),
            "format": st.sampled_from(["date", "ipv4", "unheard-of"]),
            "properties": st.dictionaries(KEYS, inner, max_size=3),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b", "[bc]"]), inner, max_size=2),
            "additionalProperties": inner,
            "propertyNames": st.sampled_from([{"maxLength": 1}, {"pattern": "^a"}, {"enum": ["a", "b"]}]),
            "required": st.lists(KEYS, max_size=2, unique=True),
            "minProperties": SIZES,
            "maxProperties": SIZES,
            "dependentRequired": st.dictionaries(KEYS, st.lists(KEYS, max_size=2, unique=True), max_size=2),
            "dependentSchemas": st.dictionaries(KEYS, inner, max_size=1),
            "items": inner,
            "prefixItems": several,
            "minItems": SIZES,
            "maxItems": SIZES,
            "uniqueItems": st.booleans(),
            "contains": inner,
            "unevaluatedProperties": inner,
            "unevaluatedItems": inner,
            "minContains": SIZES,
            "maxContains": SIZES,
            "allOf": several,
            "anyOf": several,
            "oneOf": several,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
        },
    )
    return keywords.flatmap(
        lambda schema: st.sets(st.sampled_from(sorted(schema) or ["type"]), max_size=4).map(
            lambda kept: {key: value for key, value in schema.items() if key in kept}
        )
    )


SCHEMAS = st.recursive(st.booleans() | TYPES.map(lambda kind: {"type": kind}), schemas, max_leaves=8)


@pytest.mark.slow
@settings(max_examples=tries(500, everything=1500), deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.lists(VALUES, min_size=1, max_size=8), st.integers(0, 2**32))
def test_accepted_texts_are_valid(schema: Any, values: list[Any], seed: int) -> None:
    validator = jsonschema.Draft202012Validator(schema, format_checker=FORMAT_CHECKER)
    try:
        check_budget(json.loads(json.dumps(schema)))
        grammar = compiled(schema)
    except ConstrainedK2Error as error:
        if "no value satisfies" in error.problem:
            assert not any(validator.is_valid(value) for value in values), (schema, values)
        return
    assume(grammar.coverage.is_sound)
    for value in values:
        if accepts(grammar, value):
            assert validator.is_valid(value), (schema, value)
    written = walk(grammar, seed)
    assert written is None or validator.is_valid(json.loads(written)), (schema, written)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"oneOf": [{"type": "number"}, {"not": {"type": "integer"}}]}, 1.5),
        ({"oneOf": [{"const": '"joe bloggs"@example.com'}, {"format": "email"}]}, '"joe bloggs"@example.com'),
        ({"oneOf": [{"const": [1]}, {"not": {"const": [2]}}]}, [1]),
        ({"not": {"enum": ["a"], "const": "a"}}, "a"),
    ],
)
def test_a_narrowed_branch_still_excludes_the_others(schema: Any, value: Any) -> None:
    try:
        assert not accepts(compiled(schema), value)
    except ConstrainedK2Error:
        return  # nothing of it can be written, which accepts nothing
