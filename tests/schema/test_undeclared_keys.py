"""Undeclared keys: what ``forbid`` keeps of an object, against jsonschema and an oracle of declared keys."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from itertools import product
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from constrained_k2 import Compiler, ConstrainedK2Error, InvalidRequest, ToolCallSpec, Vocabulary, schema_coverage
from constrained_k2.engines.protocol import ArgumentGrammar
from constrained_k2.request.spec import EngineName
from constrained_k2.schema.undeclared_keys import REASON, UndeclaredKeys
from tests.kit.budget import tries
from tests.kit.compilers import byte_compiler
from tests.kit.data import table
from tests.kit.grammars import accepts, request_of, walk
from tests.kit.tools import tool
from tests.schema.universe import OBJECTS, UNIVERSE

A: dict[str, Any] = {"properties": {"a": {"type": "integer"}}}

# A tool's root.
NO_ARGUMENTS: list[dict[str, Any]] = [
    {"properties": {}},
    {"type": "object", "properties": {}, "required": [], "title": "T"},
]
ANY_ARGUMENTS: list[dict[str, Any]] = [
    {}, {"type": "object"}, {"properties": {}, "additionalProperties": True}, {"properties": {}, "patternProperties": {"^x": {}}},
    {"properties": {}, "required": ["x"]}, {"properties": {}, "anyOf": [{"required": ["x"]}, {}]},
]  # fmt: skip


@pytest.mark.parametrize("schema", [*NO_ARGUMENTS, *ANY_ARGUMENTS], ids=json.dumps)
def test_a_tool_with_empty_properties_takes_no_arguments(schema: dict[str, Any]) -> None:
    vocabulary, takes_none = Vocabulary.of_bytes(), schema in NO_ARGUMENTS
    for keys in ("forbid", "allow"):
        compiled = request_of(Compiler(vocabulary, undeclared_keys=keys), schema)
        written = [all(map(compiled.arguments("f").accept, vocabulary.encode(text))) for text in ("{}", '{"x":1}')]
        is_empty = takes_none and keys == "forbid"
        assert written == ["x" not in schema.get("required", []), not is_empty], keys
        coverage = compiled.coverage("f")
        assert [use.pointer for use in coverage.narrowed] == ["#/properties"] * is_empty
        is_enforced = "#/additionalProperties" in {use.pointer for use in coverage.enforced}
        assert not is_enforced or "additionalProperties" in schema
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    answer = Compiler(vocabulary).compile(ToolCallSpec.from_openai({"response_format": form})).answer()
    assert answer is not None and all(map(answer.accept, vocabulary.encode('{"x":1}')))  # an answer, not a tool's root


CASES: dict[str, dict[str, Any]] = table(__file__)
"""A schema, instances that ``forbid`` keeps, and instances that ``allow`` accepts and ``forbid`` does not."""


def grammar_of(schema: Any, undeclared_keys: UndeclaredKeys, engine: EngineName = "llguidance") -> ArgumentGrammar:
    return byte_compiler().engine(engine).compile(json.dumps(schema), undeclared_keys)


@pytest.mark.parametrize("engine", ["llguidance", pytest.param("xgrammar", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_what_is_kept_and_what_is_not(name: str, engine: EngineName) -> None:
    schema, kept, gone = CASES[name].values()
    validator = jsonschema.Draft202012Validator(schema)
    assert all(validator.is_valid(instance) for instance in [*kept, *gone])
    allow, forbid = (grammar_of(schema, setting, engine) for setting in ("allow", "forbid"))
    for instance in kept:
        assert accepts(forbid, instance) == accepts(allow, instance), instance
        assert accepts(forbid, instance) or engine == "xgrammar", instance  # which has a fixed order of properties
    for instance in gone:
        assert accepts(allow, instance) or engine == "xgrammar", instance
        assert not accepts(forbid, instance), instance
    noted = {use.keyword for use in forbid.coverage.narrowed if use.reason == REASON}
    assert noted == ({"properties"} if gone else set())
    assert not {use for use in allow.coverage.narrowed if use.reason == REASON}


KEYS = st.sampled_from(["a", "b", "c", "d"])
LEAVES = st.sampled_from([{}, {"type": "integer"}, {"type": ["null", "object"]}, {"const": "a"}])


def some_keywords(inner: st.SearchStrategy[Any], *, plain: bool) -> st.SearchStrategy[Any]:
    """Schemas with properties and up to two other keywords.

    Plain ones lose nothing but undeclared keys: no counts, no items that satisfy ``contains``, and no negation that
    requires a key.
    """
    several = st.lists(inner, min_size=1, max_size=2)
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=1),
        "additionalProperties": inner | st.booleans(),
        "required": st.lists(KEYS, max_size=1),
        "dependentRequired": st.dictionaries(KEYS, st.lists(KEYS, max_size=1), max_size=1),
        "dependentSchemas": st.dictionaries(KEYS, inner, max_size=1),
        "items": inner,
        "allOf": several,
        "anyOf": several,
    }
    if not plain:
        keywords |= {
            "oneOf": several,
            "not": inner,
            "contains": inner,
            "minProperties": st.integers(0, 3),
            "maxProperties": st.integers(0, 3),
            "unevaluatedProperties": inner | st.booleans(),
            "enum": st.lists(st.sampled_from(OBJECTS), min_size=1, max_size=3),
        }
    condition = st.builds(lambda key: {"required": [key]}, KEYS) if plain else inner
    conditional = st.fixed_dictionaries({"if": condition}, optional={"then": inner, "else": inner})
    names = st.lists(st.sampled_from(sorted(keywords)), max_size=2, unique=True)
    others = names.flatmap(lambda found: st.fixed_dictionaries({name: keywords[name] for name in found}))
    properties = st.fixed_dictionaries({"properties": st.dictionaries(KEYS, inner, min_size=1, max_size=2)})
    return st.builds(lambda some, more, rest: some | more | rest, st.just({}) | properties, others,
                     st.just({}) | st.just({"type": "object"}) | conditional)  # fmt: skip


PLAIN = st.recursive(LEAVES, lambda inner: some_keywords(inner, plain=True), max_leaves=6)
ANY_KEYWORDS = st.recursive(LEAVES, lambda inner: some_keywords(inner, plain=False), max_leaves=6)


@settings(max_examples=tries(100, everything=300), suppress_health_check=list(HealthCheck))
@given(schema=ANY_KEYWORDS)
def test_forbidding_is_sound_and_leaves_something(schema: Any) -> None:
    try:
        allow = grammar_of(schema, "allow")
    except ConstrainedK2Error:
        assume(False)
    forbid = grammar_of(schema, "forbid")  # never refused
    for instance in UNIVERSE:
        assert accepts(allow, instance) or not accepts(forbid, instance), instance
    if forbid.coverage.is_sound and (text := walk(forbid, 0)) is not None and not rounds_to_integer(text):
        assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)), text


def rounds_to_integer(text: str) -> bool:
    """True if a fraction in a JSON text is an integer to the validator, which reads floating point."""
    numbers: list[str] = []
    json.loads(text, parse_float=numbers.append)
    return any(float(one).is_integer() and Decimal(one) != Decimal(one).to_integral_value() for one in numbers)


def applied(schema: Any, instance: Any) -> Iterator[list[dict[str, Any]]]:
    """The schemas that apply to an instance in place: one list for each choice of a branch in each anyOf."""
    valid = jsonschema.Draft202012Validator
    if isinstance(schema, bool):
        yield []
        return
    parts = [[[schema]], *([*applied(branch, instance)] for branch in schema.get("allOf", ()))]
    if "anyOf" in schema:
        held = [branch for branch in schema["anyOf"] if valid(branch).is_valid(instance)]
        parts.append([alternative for branch in held for alternative in applied(branch, instance)])
    if "if" in schema:
        holds = valid(schema["if"]).is_valid(instance)
        parts += [[*applied(schema["if"], instance)]] if holds else []
        parts.append([*applied(schema.get("then" if holds else "else", True), instance)])
    if isinstance(instance, dict):
        for key, inner in schema.get("dependentSchemas", {}).items():
            parts += [[*applied(inner, instance)]] if key in instance else []
    for alternative in product(*parts):
        yield [each for part in alternative for each in part]


def is_declared(schemas: list[Any], instance: Any) -> bool:
    """True if a valid instance has declared keys alone, in itself and below."""
    alternatives = (
        [each for part in alternative for each in part]
        for alternative in product(*(list(applied(s, instance)) for s in schemas))
    )
    return any(_is_declared(alternative, instance) for alternative in alternatives)


def _is_declared(applying: list[dict[str, Any]], instance: Any) -> bool:
    if isinstance(instance, list):
        below = [schema["items"] for schema in applying if "items" in schema]
        return all(is_declared(below, item) for item in instance)
    if not isinstance(instance, dict):
        return True
    declared = {name for schema in applying for name in (*schema.get("properties", ()), *schema.get("required", ()))}
    for schema in applying:
        dependent = schema.get("dependentRequired", {}).items()
        declared.update(schema.get("dependentSchemas", ()), *((key, *names) for key, names in dependent))
    has_properties = any(schema.get("properties") for schema in applying)
    rules = any("additionalProperties" in schema or schema.get("patternProperties") for schema in applying)
    if has_properties and not rules and not instance.keys() <= declared:
        return False
    return all(is_declared(list(_rules_of(applying, key)), value) for key, value in instance.items())


def _rules_of(applying: list[dict[str, Any]], key: str) -> Iterator[Any]:
    for schema in applying:
        found = [schema["properties"][key]] if key in schema.get("properties", ()) else []
        found += [value for pattern, value in schema.get("patternProperties", {}).items() if re.search(pattern, key)]
        yield from found or ([schema["additionalProperties"]] if "additionalProperties" in schema else [])


@settings(max_examples=tries(133, everything=400), suppress_health_check=list(HealthCheck))
@given(schema=PLAIN)
def test_what_is_kept_is_what_an_oracle_keeps(schema: Any) -> None:
    try:
        allow = grammar_of(schema, "allow")
    except ConstrainedK2Error:
        assume(False)
    assume(not allow.coverage.relaxed and not allow.coverage.narrowed)
    forbid = grammar_of(schema, "forbid")
    for instance in UNIVERSE:
        expected = accepts(allow, instance) and is_declared([schema], instance)
        assert accepts(forbid, instance) == expected, instance


def test_the_request_outweighs_the_compiler() -> None:
    for default, request, is_open in (("allow", None, True), ("forbid", None, False), ("allow", "forbid", False),
                                      ("forbid", "allow", True)):  # fmt: skip
        spec = ToolCallSpec.from_openai({"tools": [tool("f", A | {"type": "object"})], "undeclared_keys": request})
        spec = ToolCallSpec.from_json(spec.to_json())
        assert spec.undeclared_keys == request
        compiled = Compiler(Vocabulary.of_bytes(), undeclared_keys=default).compile(spec)  # type: ignore[arg-type]
        assert accepts(compiled.grammar("f"), {"x": 1}) == is_open
        assert compiled.is_compiled("f")


@pytest.mark.parametrize("value", ["deny", True, [], {}])
def test_another_value_is_refused(value: Any) -> None:
    for ask in (
        lambda: ToolCallSpec.from_openai({"undeclared_keys": value}),
        lambda: schema_coverage({}, undeclared_keys=value),
        lambda: Compiler(Vocabulary.of_bytes(), undeclared_keys=value),
    ):
        with pytest.raises(InvalidRequest, match="'allow' or 'forbid'") as refused:
            ask()
        assert refused.value.location == "undeclared_keys"
