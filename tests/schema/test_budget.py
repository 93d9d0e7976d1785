"""Hostile schemas: each is refused by the budget, or compiles in bounded time."""

import json
import random
import subprocess
import sys
import time
from typing import Any

import pytest

from constrained_k2 import Compiler, ConstrainedK2Error, SchemaTooCostly, UnsupportedSchema
from constrained_k2.schema.budget import check_budget
from tests.kit.compilers import accepts, byte_compiler


def of(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


def chain(length: int, kind: str) -> dict[str, Any]:
    """A chain of references."""

    def link(number: int) -> dict[str, Any]:
        step = {"$ref": f"#/$defs/d{number + 1}"}
        if kind == "object":
            return {"type": "object", "properties": {"x": step}, "required": ["x"]}
        return step if kind == "ref" else {kind: [step]}

    definitions = {f"d{number}": link(number) for number in range(length)} | {f"d{length}": {"type": "integer"}}
    return of({"$ref": "#/$defs/d0"}) | {"$defs": definitions}


@pytest.mark.parametrize("kind", ["object", "ref", "allOf", "anyOf"])
def test_long_chains_within_the_budget_compile(kind: str) -> None:
    assert byte_compiler().grammar(json.dumps(chain(60, kind)), "schema")


HOSTILE: list[tuple[Any, str]] = [
    ({"enum": list(range(20_000))}, "values"),
    ({"anyOf": [{}] * 60_000}, "objects"),
    ({"allOf": [{"type": "string", "pattern": f"x{number}.*y{number}"} for number in range(22)]}, "patterns"),
    ({"type": "string", "pattern": "^" + "ab?" * 400_000 + "$"}, "pattern_characters"),
    ({"type": "object", "patternProperties": {f"^a{number}b": {} for number in range(300)}}, "anchored_patterns"),
    ({"type": "object", "properties": {"k" * 2_000_000: {}}}, "text_characters"),
    ({"enum": ["x" * 1_000_000]}, "text_characters"),
    *((chain(length, kind), "depth") for length in (1_500, 20_000) for kind in ("object", "ref", "allOf", "anyOf")),
]


@pytest.mark.parametrize(("schema", "budget"), HOSTILE, ids=[str(schema)[:50] for schema, _ in HOSTILE])
def test_schemas_that_cost_seconds_and_gigabytes_are_refused(schema: Any, budget: str) -> None:
    with pytest.raises(SchemaTooCostly) as refused:
        check_budget(schema if "$defs" in schema else of(schema))
    assert refused.value.budget == budget
    assert refused.value.actual > refused.value.limit
    assert refused.value.remedy


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "integer"}, "minItems": 10**7},
        {"type": "array", "maxItems": 10**6},
        {"type": "integer", "multipleOf": 999_983},
        {"allOf": [{"type": "integer", "multipleOf": factor} for factor in (97, 89, 83)]},
        {"type": "number", "multipleOf": 0.0999983},
    ],
)
def test_large_counts_and_multiples_have_grammars(schema: Any) -> None:
    coverage = byte_compiler().grammar(json.dumps(of(schema)), "schema").coverage
    assert {use.keyword for use in coverage.relaxed} <= {"multipleOf"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "minProperties": 1},
        {"type": "object", "minProperties": 2, "required": ["a", "b"]},
        {"type": "object", "minProperties": 2, "properties": {"a": {}, "b": {}}, "additionalProperties": False},
        {"type": "integer", "minimum": -(2**53), "maximum": 2**53, "multipleOf": 25},
        {"type": "number", "multipleOf": 0.01},
        {"allOf": [{"type": "number", "multipleOf": 0.0000001}]},
        {"properties": {"a": {"multipleOf": 0.01}, "b": {"multipleOf": 5}, "c": {"allOf": [{"multipleOf": 7}]}}},
        {"type": "array", "maxItems": 500},
        {"properties": {"pattern": {"type": "string"}, "$ref": {"type": "string"}, "enum": {"type": "integer"}}},
        {"enum": [], "const": None},
        True,
        of({"$ref": "#/$defs/node"}) | {"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}},
    ],
)
def test_ordinary_schemas_pass(schema: Any) -> None:
    before = json.dumps(schema)
    check_budget(schema)
    assert json.dumps(schema) == before


@pytest.mark.parametrize("depth", range(940, 1000, 6))
def test_schemas_near_the_recursion_limit_raise_our_error(depth: int) -> None:
    text = '{"type":"object","properties":{"a":' + '{"items":' * depth + "{}" + "}" * depth + "}}"
    with pytest.raises(ConstrainedK2Error):
        byte_compiler().grammar(text, "schema")


def test_a_schema_that_took_too_long_once_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = byte_compiler().vocabulary
    compiler = Compiler(vocabulary, compile_seconds=0.05)
    compile_now = compiler.engine("llguidance").compile

    def slow(*arguments: Any) -> Any:
        time.sleep(0.5)
        return compile_now(*arguments)

    monkeypatch.setattr(compiler.engine("llguidance"), "compile", slow)
    with pytest.raises(SchemaTooCostly, match="takes too long") as refused:
        compiler.grammar('{"title":"slow"}', "schema")
    assert (refused.value.budget, refused.value.limit, refused.value.location) == ("compile_ms", 50, "schema")
    monkeypatch.undo()
    compiler._compile_seconds = 5
    assert compiler.grammar('{"title":"slow"}', "schema")


def test_a_pattern_that_fills_its_lexer_still_matches_correctly() -> None:
    found = byte_compiler().engine("llguidance")._patterns.is_found  # type: ignore[attr-defined]
    chance = random.Random(0)
    for _ in range(200):
        text = "".join(chance.choices("abc", k=300))
        assert found(".*a.{20}$", text) is (text[-21] == "a")


def test_arguments_are_objects_even_if_an_old_draft_ignores_siblings_of_a_reference() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/x",
              "definitions": {"x": {"type": ["string", "object"]}, "y": {"type": "string"}}}  # fmt: skip
    assert accepts(byte_compiler(), schema, "{}")
    assert not accepts(byte_compiler(), schema, '"x"')
    with pytest.raises(UnsupportedSchema, match="no value satisfies"):
        byte_compiler().grammar(json.dumps(schema | {"$ref": "#/definitions/y"}), "schema")


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"\ud800": {}}},
        {"required": ["\ud800"]},
        {"enum": ["x", "\udc00"]},
        {"const": {"\ud800": 1}},
        {"const": [[["\ud800"]]]},
        {"const": {"title": "\ud800"}},
        {"enum": [{"default": ["\ud800"]}]},
        {"not": {"const": "\ud800"}},
        {"pattern": "\ud800"},
        {"patternProperties": {"\ud800": {}}},
        {"const": float("nan")},
        {"const": {"examples": float("inf")}},
        {"\ud800": float("inf")},
        {"maximum": float("inf")},
    ],
    ids=ascii,
)
def test_values_without_a_form_in_json_are_refused_with_their_location(schema: Any) -> None:
    with pytest.raises(UnsupportedSchema, match="surrogate|not a number") as refused:
        byte_compiler().grammar(json.dumps(of(schema)), "schema")
    assert refused.value.location.startswith("schema#/properties/a/")
    assert not refused.value.location.endswith("'")
    assert str(refused.value).encode()


def test_lone_surrogates_in_annotations_are_ignored() -> None:
    assert accepts(byte_compiler(), {"type": "object", "description": "\ud800", "title": "\ud800"}, "{}")


SCRIPT = """
import json
from constrained_k2 import Compiler, SchemaTooCostly, Vocabulary
parts = {f"p{n}": {"patternProperties": {f"^{n}a": {"type": "string"}, f"b{n}$": {"type": "string"}}} for n in range(200)}
compiler = Compiler(Vocabulary.of_bytes(), compile_seconds=0.1)
try:
    compiler.grammar(json.dumps({"properties": parts}), "schema")
except SchemaTooCostly as error:
    print(error)
"""


def test_a_process_that_still_compiles_exits_cleanly() -> None:
    """Native code that returns to a finished interpreter is a segmentation fault."""
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert "takes too long" in ended.stdout
    assert ended.returncode == 0, ended.stderr
