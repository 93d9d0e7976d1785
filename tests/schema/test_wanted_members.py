"""Negations of key maps: an object must have a certain member, which is written in any place, and never a dead end."""

import json
from copy import deepcopy
from typing import Any

import jsonschema
import pytest

from constrained_k2.engines.llguidance.grammar_text import Patterns
from constrained_k2.errors import SchemaTooCostly
from constrained_k2.grammar.plan.planner import plan_schema
from constrained_k2.grammar.plan.planning import Planning
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.no_instances import write_some
from constrained_k2.schema.normalize import Normalizer
from constrained_k2.schema.shapes import Shapes
from tests.kit.grammars import accepts, compiled, walk
from tests.schema.universe import UNIVERSE

EXACT: dict[str, Any] = {"oneOf": [
    {"properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": False},
    {"properties": {"a": {"type": "integer"}, "d": {}}, "additionalProperties": False},
]}  # fmt: skip
NARROWED: list[Any] = [
    {"not": {"patternProperties": {"^a": {"type": "boolean"}}}},
    {"not": {"additionalProperties": {"type": "string"}}},
    {"not": {"properties": {"a": {}}, "additionalProperties": {"type": "boolean"}}},
    {"oneOf": [{"additionalProperties": {"type": kind}} for kind in ("string", "null")]},
    EXACT,
]


@pytest.mark.slow
@pytest.mark.parametrize("schema", NARROWED, ids=lambda schema: json.dumps(schema)[:60])
def test_narrowed_negations_are_sound(schema: Any) -> None:
    validator, grammar = jsonschema.Draft202012Validator(schema), compiled(schema)
    assert grammar.coverage.is_sound
    values = [*UNIVERSE, {"foo": 1}, {"b": 1, "zz": 1}, {"zz": "s", "a": 1}]
    wrong = [value for value in values if accepts(grammar, value) and not validator.is_valid(value)]
    missing = [value for value in values if validator.is_valid(value) and not accepts(grammar, value)]
    assert not wrong and (not missing or schema is not EXACT)
    for seed in range(20):
        written = walk(grammar, seed)
        assert written is None or validator.is_valid(json.loads(written)), written


@pytest.mark.parametrize("schema", NARROWED, ids=lambda schema: json.dumps(schema)[:60])
def test_predicates_note_nothing(schema: Any) -> None:
    """Coverage does not depend on how often a shape is asked for its values."""
    normalizer, root = Normalizer(SchemaDocument(schema), Patterns().is_found), frozenset({("#", True)})
    planning = Planning(normalizer, lambda _: True, lambda *_, **__: True, "allow", "exact")
    plan_schema(planning, root)
    notes, narrowings = deepcopy(normalizer.notes.found), normalizer.notes.narrowings
    for node in planning.sources:
        for shape in planning.productivity.shapes(node):
            planning.productivity.has_value(shape)
    assert (normalizer.notes.found, normalizer.notes.narrowings) == (notes, narrowings)


@pytest.mark.parametrize("count", [65, 70, 200])
def test_of_many_required_keys_the_first_come_first(count: int) -> None:
    names = [f"k{number:03}" for number in range(count)]
    properties: dict[str, Any] = {name: {"type": "null"} for name in names} | {"x": {}}
    grammar = compiled({"type": "object", "properties": properties, "required": names})
    assert grammar.coverage.is_sound
    first, others = names[:-64], names[-64:]
    assert accepts(grammar, dict.fromkeys([*first, "x", *reversed(others)]))
    assert not accepts(grammar, dict.fromkeys(["x", *names]))
    assert not accepts(grammar, dict.fromkeys([*first, "x", *others[1:]]))
    text = "{" + ",".join(f'"{name}":null' for name in [*names, names[-1]]) + "}"
    assert not all(map(grammar.matcher("schema").accept, text.encode()))


def test_what_costs_too_much_to_negate_exactly_is_narrowed() -> None:
    some = {"additionalProperties": False, "minProperties": 1}
    names = ("[ab]", "[bc]", "[cd]", "[de]", "[ef]")
    selector = {"oneOf": [{"patternProperties": {f"^{name}": {"$ref": "#/$defs/any"}}} | some for name in names]}
    both = {"oneOf": [{"$ref": "#/$defs/selector"}, {"type": "object", "required": ["x"]}, {"type": "string"}]}
    schema = {"type": "object", "$defs": {"any": both, "selector": selector}, "properties": {"v": both}}
    grammar = compiled(schema)
    assert grammar.coverage.is_sound
    assert accepts(grammar, {"v": "s"})


def test_alternatives_that_cost_too_much_are_relaxed_and_named() -> None:
    one_of = [{"required": ["a"]}, {"required": ["b"]}]
    schema = {"type": "object", "oneOf": one_of, "not": {"required": ["c"]}, "if": True, "then": {"required": ["d"]}}
    tried: list[Normalizer] = []

    def too_costly(normalizer: Normalizer) -> Shapes:
        raise normalizer.notes.too_costly("too many parts", "nodes", 1)

    def write(normalizer: Normalizer) -> Shapes:
        tried.append(normalizer)
        is_cheap = "oneOf" in normalizer.left_out
        return normalizer.shapes(frozenset({("#", True)})) if is_cheap else too_costly(normalizer)

    shapes = write_some(SchemaDocument(schema), lambda _, __: False, write)
    assert [shape.kind for shape in shapes] == ["object"]
    relaxed = {pointer for pointer, noted in tried[-1].notes.found.items() if "relaxed" in dict(noted)}
    assert relaxed == {"#/oneOf", "#/not", "#/if"}
    with pytest.raises(SchemaTooCostly):
        write_some(SchemaDocument(schema), lambda _, __: False, too_costly)


def test_a_pattern_that_exhausts_the_engine_when_it_is_compiled_is_relaxed_and_named() -> None:
    grammar = compiled({"type": "string", "pattern": "^([a-z][0-9])+$", "minLength": 10_000})
    assert [use.pointer for use in grammar.coverage.relaxed] == ["#/pattern"]
    assert accepts(grammar, "a1" * 5_000)
    assert not accepts(grammar, "a1" * 4_999)
