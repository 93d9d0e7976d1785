"""Plain schemas: whatever is admitted by its shape compiles, and is enforced wholly."""

import json
import lzma
from functools import cache
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constrained_k2 import Compiler, Vocabulary
from constrained_k2.compiler.shape_admission import ShapeAdmission
from constrained_k2.compiler.shared import GrammarOptions
from constrained_k2.engines.protocol import ArgumentEncoding
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.schema.keywords import KEYWORDS
from constrained_k2.schema.plain import MAX_PARTS, plain_shape
from constrained_k2.schema.string_formats import FORMATS
from constrained_k2.schema.undeclared_keys import UNDECLARED_KEYS
from tests.kit.budget import tries
from tests.kit.data import data, mcp_servers, suite

ENCODINGS: tuple[ArgumentEncoding, ...] = get_args(ArgumentEncoding)


@cache
def compiler(encoding: ArgumentEncoding) -> Compiler:
    vocabulary = Vocabulary.of_bytes(KIMI_K3 if encoding == "xtml" else KIMI_K2)
    return Compiler(vocabulary, mask_cache_bytes=0, cache_bytes=1 << 20)


def check(schema: Any, encodings: tuple[ArgumentEncoding, ...] = ENCODINGS) -> bool:
    """True for a plain schema: it compiles, and nothing of it is relaxed or read as something else."""
    text = json.dumps(schema, separators=(",", ":"))
    if plain_shape(text) is None:
        return False
    for encoding in encodings:
        if ShapeAdmission(compiler(encoding), encoding).parts(text) is None:
            return False
        for undeclared_keys in UNDECLARED_KEYS:
            options = GrammarOptions(undeclared_keys=undeclared_keys, encoding=encoding)
            grammar: Any = compiler(encoding).grammar(text, "", options=options)
            assert not grammar.coverage.inexact, (schema, grammar.coverage.inexact)
    return True


def under(value: Any, **root: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"p": value}, "required": ["p"], **root}


TREE = {"type": "object", "properties": {"below": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}
CHAIN = {"type": "object", "properties": {"next": {"$ref": "#/$defs/chain"}}, "required": ["next"]}
PLAIN = {
    "nothing": {},
    "any object": {"type": "object"},
    "annotations": under({"type": "string", "description": "d", "default": {"a": 1}, "examples": [1, "a"], "x-y": True}),
    "types": under({"type": ["string", "null", "integer"]}),
    "any value": under({}),
    "true": under(True),
    "names": {"properties": {name: {} for name in ('a"b', "a&b", "<x>", "ключ", "a b", "a~b/c%d", "pattern", "$ref")}},
    "64 properties": {"properties": {f"p{n}": {"type": "string"} for n in range(64)}, "required": [f"p{n}" for n in range(64)]},
    "closed": under({"properties": {"a": {}}, "additionalProperties": False}),
    "others": under({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}}),
    "closed and empty": under({"type": "object", "additionalProperties": False}),
    "enum": under({"type": "string", "enum": ["a", "", "\u00e9", '"', "a/b", None, 1]}),
    "enum of all types": under({"enum": ["a", None, True, 5, -7]}),
    "const": under({"const": "a", "type": "string"}),
    "lengths": under({"type": "string", "minLength": 10_000, "maxLength": 10_000}),
    "no length": under({"type": "string", "maxLength": 0}),
    "items": under({"type": "array", "items": {"type": "string"}, "minItems": 1_000, "maxItems": 1_000}),
    "no items": under({"type": "array", "items": {"type": "string"}, "maxItems": 0, "uniqueItems": False}),
    "bounds": under({"type": "number", "minimum": -0.5, "exclusiveMaximum": 1e15}),
    "bounds of integers": under({"type": "integer", "exclusiveMinimum": 0, "maximum": 2}),
    "one number": under({"type": "integer", "minimum": 3, "maximum": 3}),
    "draft 4": under({"type": "integer", "minimum": 0, "exclusiveMinimum": True}),
    "format and length": under({"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083}),
    "pattern": under({"type": "string", "pattern": "^[0-9]{2}:[0-9]{2}$"}),
    "pattern and length": under({"type": ["string", "null"], "pattern": "^[a-z]", "minLength": 3, "maxLength": 30}),
    "pattern and format": under({"type": "string", "pattern": "^2", "format": "date"}),
    "optional pattern": under({"anyOf": [{"type": "string", "pattern": "^[A-Z]{3}$"}, {"type": "null"}]}),
    "patterns in objects": under({"type": "array", "items": {"properties": {"a": {"type": "string", "pattern": "x"}}}}),
    "one pattern often": {"properties": {f"p{n}": {"type": "string", "pattern": "^[0-9a-f]{8}$"} for n in range(40)}},
    "unknown format": under({"type": "integer", "format": "int64"}),
    "optional": under({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "P"}),
    "any of objects": under({"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}, {"type": "object"}]}),
    "undefined": under({"anyOf": [{"not": {}}, {"type": "number"}, {"oneOf": [{"type": "null"}, {"not": {}}]}]}),
    "one of types": under({"oneOf": [{"type": "integer"}, {"type": "string"}, {"enum": [None]}]}),
    "reference": under({"allOf": [{"$ref": "#/$defs/a~1b"}]}, **{"$defs": {"a/b": {"type": "string"}}}),
    "tree": under({"$ref": "#/$defs/tree"}, **{"$defs": {"tree": TREE}}),
    "reference to a part": under({"type": "array", "items": {"$ref": "#/properties/p"}}),
    "legacy": under({"$ref": "#/definitions/a", "description": "d"}, definitions={"a": {"const": 1}}, **{"$schema": "http://json-schema.org/draft-04/schema#"}),
}  # fmt: skip
NOT_PLAIN = {
    "no object": {"type": "array"},
    "false": under(False),
    "unknown type": under({"type": "str"}),
    "no type": under({"type": []}),
    "negation": under({"not": {"type": "string"}}),
    "never": under({"anyOf": [{"not": {}}, {"not": {}}]}),
    "pattern without strings": under({"type": "string", "pattern": "[^\\s\\S]"}),
    "pattern that is relaxed": under({"type": "string", "pattern": "(a+)-\\1"}),
    "pattern that is not one": under({"type": "string", "pattern": "("}),
    "pattern of any type": under({"pattern": "^a"}),
    "pattern beside an enum": under({"type": "string", "pattern": "^a", "enum": ["a", "b"]}),
    "pattern and another string": under({"anyOf": [{"type": "string", "pattern": "^a"}, {"const": "b"}]}),
    "pattern and lengths without strings": under({"type": "string", "pattern": "^a$", "minLength": 2}),
    "many patterns": {"properties": {f"p{n}": {"type": "string", "pattern": f"^{n}$"} for n in range(40)}},
    "no value": under({"type": "string", "enum": [1]}),
    "no values": under({"enum": []}),
    "no integer": under({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
    "no number": under({"type": "number", "minimum": 2, "maximum": 1}),
    "no fraction": under({"type": "integer", "minimum": 0.4, "maximum": 0.6}),
    "no string": under({"type": "string", "minLength": 2, "maxLength": 1}),
    "no date": under({"type": "string", "format": "date", "maxLength": 3}),
    "no array": under({"type": "array", "minItems": 2, "maxItems": 1}),
    "undeclared": {"properties": {"a": {}}, "required": ["b"]},
    "exclusive": under({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
    "both": under({"oneOf": [{"type": "integer"}], "anyOf": [{"type": "number"}]}),
    "beside": under({"type": "string", "anyOf": [{"maxLength": 3}]}),
    "unique": under({"type": "array", "uniqueItems": True}),
    "names itself": under({"$ref": "#/properties/p"}),
    "without end": under({"$ref": "#/$defs/chain"}, **{"$defs": {"chain": CHAIN}}),
    "nothing there": under({"$ref": "#/$defs/x"}),
    "outside": under({"$ref": "https://example.com/x"}),
    "identified": under({"$id": "urn:x", "type": "string"}),
    "hidden": under({"example": {"pattern": "a" * 9_000}}),
    "unused": {"$defs": {"x": {"pattern": "a" * 9_000}}},
    "long name": {"properties": {"a" * 5_000: {}}},
    "long name of a definition": {"$defs": {"a" * 5_000: {}}},
    "deep default": under({"default": [[[]]]}),
    "deep": under(__import__("functools").reduce(lambda inner, _: {"type": "array", "items": inner}, range(30), {})),
    "many values": under({"enum": list(range(MAX_PARTS))}),
    "many references": under({"$ref": "#/$defs/a"}, **{"$defs": {"a": {"properties": {f"p{n}": {"$ref": "#/$defs/b"} for n in range(60)}}, "b": {"properties": {f"p{n}": {} for n in range(60)}}}}),
    "lone surrogate": under({"description": "\ud800"}),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_plain_schemas_are_enforced_wholly(name: str) -> None:
    assert check(PLAIN[name])


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_other_schemas_are_left_to_the_compiler(name: str) -> None:
    assert not check(NOT_PLAIN[name])


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"a":NaN}', '{"a":1e999}', '{"a":' * 10_000, f'{{"a":"{"a" * 70_000}"}}'])  # fmt: skip
def test_what_is_no_small_schema_is_not_plain(text: str) -> None:
    assert plain_shape(text) is None


@pytest.mark.slow
def test_tools_of_public_servers() -> None:
    schemas = [tool["function"].get("parameters", {}) for tools in mcp_servers() for tool in tools]
    plain = sum(map(check, schemas))
    assert plain >= 0.99 * len(schemas), "admission compiles the others"


@pytest.mark.slow
def test_the_test_suite() -> None:
    files = sorted(suite().rglob("*.json"))
    schemas = [case["schema"] for file in files for case in json.loads(file.read_text("utf-8")) if "schema" in case]
    assert sum(check(under(schema)) for schema in schemas) > 100


@pytest.mark.slow
def test_schemas_found_in_the_wild() -> None:
    """A tenth of MaskBench as tools, and subschemas of another one as properties."""
    chosen, plain = Random(18), 0
    with lzma.open(data("schemas/maskbench.jsonl.xz"), "rt") as lines:
        for line in lines:
            schema, way = json.loads(line)["schema"], chosen.random()
            if way < 0.1:
                plain += check(schema, (chosen.choice(ENCODINGS),))
            elif way < 0.2 and isinstance(schema, dict):
                definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
                found = [value for value in walked(schema) if isinstance(value, dict)]
                for part in chosen.sample(found, min(3, len(found))):
                    plain += check(under(part, **definitions), (chosen.choice(ENCODINGS),))
    assert plain > 800


def walked(value: Any) -> list[Any]:
    found, waiting = [], [value]
    while waiting:
        inner = waiting.pop()
        found.append(inner)
        waiting += inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ()
    return found


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6) | st.sampled_from(sorted(KEYWORDS))
numbers = st.integers(-3, 4) | st.sampled_from([0.5, -0.25, 1e-9, 10**15, -1e15, 1e300, True])
sizes = st.integers(0, 3) | st.sampled_from([999, 1_000, 9_999, 10_000])
types = st.sampled_from(["null", "boolean", "number", "integer", "string", "array", "object"])
values = st.none() | st.booleans() | st.integers(-5, 5) | names
leaves = st.fixed_dictionaries(
    {},
    optional={
        "type": types | st.lists(types, max_size=3),
        "enum": st.lists(values, max_size=4),
        "const": values,
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), numbers),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), sizes),
        "format": st.sampled_from([*FORMATS, "int32"]),
        "pattern": st.sampled_from(["^a", "b$", "^[0-9]{2,4}$", "^(a|bc)*$", "(?i)x", "[", "^$"]),
        "default": values,
        "uniqueItems": st.booleans(),
    },
)


def nodes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.dictionaries(names, inner, max_size=4).flatmap(
        lambda named: st.fixed_dictionaries(
            {"properties": st.just(named), "type": st.just("object")},
            optional={
                "required": st.lists(st.sampled_from([*named, "other"]), unique=True),
                "additionalProperties": inner | st.booleans(),
            },
        )
    )
    arrays = st.fixed_dictionaries({"type": st.just("array"), "items": inner}, optional={"minItems": sizes})
    branches = st.sampled_from(["anyOf", "oneOf", "allOf"]).flatmap(
        lambda name: st.fixed_dictionaries({name: st.lists(inner, min_size=1, max_size=3)})
    )
    references = st.sampled_from(["#/$defs/a", "#/$defs/b", "#/properties/p"]).map(lambda to: {"$ref": to})
    return objects | arrays | branches | references


schemas = st.recursive(leaves | st.booleans(), nodes, max_leaves=8)


@pytest.mark.slow
@settings(max_examples=tries(166, everything=500), deadline=None)
@given(schemas, schemas, schemas, st.sampled_from(ENCODINGS))
def test_schemas_of_all_kinds(value: Any, one: Any, other: Any, encoding: ArgumentEncoding) -> None:
    check(under(value, **{"$defs": {"a": one, "b": other}}), (encoding,))


JSON = st.recursive(values | st.floats(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4), max_leaves=12)  # fmt: skip


@settings(max_examples=tries(100, everything=300), deadline=None)
@given(JSON, JSON)
def test_no_json_fails(value: Any, other: Any) -> None:
    plain_shape(json.dumps(value))
    check(under(value, **{"$defs": other}), ("json",))
