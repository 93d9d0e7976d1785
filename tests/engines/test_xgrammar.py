"""The xgrammar engine: its masks, its state, and the coverage of schemas."""

import json
from random import Random
from typing import Any

import jsonschema
import numpy as np
import numpy.typing as npt
import pytest

from constrained_k2 import (
    Compiler,
    InvalidRequest,
    ToolCallSpec,
    UnsupportedSchema,
    Vocabulary,
    parse_completion,
    schema_coverage,
)
from constrained_k2.engines.protocol import ArgumentMatcher
from constrained_k2.engines.xgrammar.engine import XGrammarEngine
from constrained_k2.vocabulary.bitmask import allocate_bitmask, allowed_ids
from tests.kit.compilers import byte_compiler
from tests.kit.grammars import request_of, takes
from tests.kit.tools import tool
from tests.kit.turns import call_end, call_start, check_states, section_end
from tests.kit.walks import walk

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 40},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 3},
        "scale": {"const": 3.14},
    },
    "required": ["city"],
}
ARGUMENTS = '{"city": "北京\\n\\"x\\"", "unit":"celsius","days" : [1,2], "scale": 3.14, "more": {"<|im_end|>": [null]}}'


@pytest.fixture(scope="module")
def engine(small_compiler: Compiler) -> XGrammarEngine:
    """As all engines here, one that other tests have started: each has a process."""
    return started(small_compiler)


@pytest.fixture(scope="module")
def compiler(small_compiler: Compiler) -> Compiler:
    made = Compiler(small_compiler.vocabulary)
    made._engines["xgrammar"], made.default_engine = started(small_compiler), "xgrammar"
    return made


@pytest.fixture(scope="module")
def byte_engine() -> XGrammarEngine:
    return started(byte_compiler())


def started(compiler: Compiler) -> XGrammarEngine:
    found = compiler.engine("xgrammar")
    assert isinstance(found, XGrammarEngine)
    return found


def mask(matcher: ArgumentMatcher, vocabulary: Vocabulary) -> npt.NDArray[np.int32]:
    row = allocate_bitmask(1, vocabulary.size)[0]
    row.fill(-1)
    matcher.fill(row)
    return row


def accepts(engine: XGrammarEngine, schema: Any, text: str | bytes) -> bool:
    """The engine over the vocabulary of bytes."""
    raw = text if isinstance(text, bytes) else text.encode()
    return takes(engine.compile(json.dumps(schema)).matcher("schema"), raw)


@pytest.mark.parametrize("which", ["small_compiler", pytest.param("real_compiler", marks=pytest.mark.slow)])
def test_no_special_token_but_the_end_is_ever_allowed(which: str, request: pytest.FixtureRequest) -> None:
    compiler: Compiler = request.getfixturevalue(which)
    vocabulary, matcher = compiler.vocabulary, started(compiler).compile(json.dumps(WEATHER)).matcher("schema")
    specials = np.array(vocabulary.unordinary_ids)
    for token in vocabulary.encode(ARGUMENTS):
        allowed = allowed_ids(mask(matcher, vocabulary))
        assert not np.isin(allowed, specials).any()
        assert allowed.max() < vocabulary.size
        assert not matcher.is_complete()
        assert token in allowed
        assert not any(matcher.accept(int(special)) for special in specials)
        assert matcher.accept(token)
    assert matcher.is_complete()
    assert allowed_ids(mask(matcher, vocabulary)).tolist() == [vocabulary.format.call_end]


def test_states_are_those_of_a_fresh_matcher(compiler: Compiler) -> None:
    """After rollbacks, in forks and in batches, before each token of the arguments."""
    vocabulary, compiled = compiler.vocabulary, request_of(compiler, WEATHER | {"additionalProperties": True})
    ids = [*call_start(vocabulary), *vocabulary.encode(ARGUMENTS), *call_end(vocabulary), *section_end(vocabulary)]
    check_states(compiled.matcher, ids, Random(0))


def test_a_refused_token_changes_nothing(engine: XGrammarEngine, small_vocabulary: Vocabulary) -> None:
    matcher = engine.compile(json.dumps(WEATHER)).matcher("schema")
    (brace, *_) = small_vocabulary.encode('{"')
    assert matcher.accept(brace)
    before = mask(matcher, small_vocabulary)
    for token in range(small_vocabulary.size):
        if token not in allowed_ids(before):
            assert not matcher.accept(token)
    assert (mask(matcher, small_vocabulary) == before).all()
    matcher.rollback(1)
    assert matcher.accept(brace)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", [b'"\xed\xa0\x80"', b'"\xff"', b'"\xe0\x80\x80"', b'"\t"', b'"\x00"', b'"\\x"', b'"\\ud800"']
)
@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "string", "minLength": 1}, {"pattern": "^[^x]*"}, {"pattern": "."},
                                    {"not": {"const": "a"}}, {}], ids=str)  # fmt: skip
def test_strings_are_utf8_and_json(byte_engine: XGrammarEngine, schema: Any, text: bytes) -> None:
    whole = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    assert accepts(byte_engine, whole, '{"a":"é\\n\\"\\\\😀"}')
    assert not accepts(byte_engine, whole, b'{"a":' + text + b"}")
    assert not accepts(byte_engine, whole, b'{"a":"",' + text + b":1}")


@pytest.mark.parametrize("name", ["city", 'a"b', "a\\b", "a\nb", "é😀", "\u2028", "", "a/b", "a-?", "\x00"])
def test_a_declared_key_is_never_repeated(byte_engine: XGrammarEngine, name: str) -> None:
    schema = {"type": "object", "properties": {name: {"type": "integer"}, "z": {}}}
    key = json.dumps(name, ensure_ascii=False)
    escaped = '"' + "".join(f"\\u{ord(character):04x}" for character in name if ord(character) < 0x10000) + '"'
    assert accepts(byte_engine, schema, f'{{{key}:1,"z":0,"Q{key[1:]}:""}}')
    assert not accepts(byte_engine, schema, f'{{{key}:1,{key}:""}}')
    assert not accepts(byte_engine, schema, f'{{"z":1,{key}:""}}')
    if name not in {"", "é😀", "\x00"}:
        assert not accepts(byte_engine, schema, f'{{{escaped}:""}}')
    assert byte_engine.compile(json.dumps(schema)).coverage.is_sound


def test_engine_options_in_a_schema_are_ignored(byte_engine: XGrammarEngine) -> None:
    plain = {"type": "object", "properties": {"a": {"type": "integer"}}}
    steered = plain | {
        "x-guidance": {"whitespace_pattern": "x"},
        "any_whitespace": False,
        "strict_mode": True,
        "x-order": ["a"],
        "unknown": {"$ref": "#/nowhere"},
        "$defs": {"any": {"type": "null"}, "string": False, "n0": False},
    }
    for text in ('{"a": 1}', '{"a":1,"b":"x"}', '{ "b" : [ ] }', '{"a":""}', "{}", "{"):
        assert accepts(byte_engine, steered, text) == accepts(byte_engine, plain, text)
    assert not accepts(byte_engine, plain, '{"a":' + " " * 17 + "1}")
    assert accepts(byte_engine, plain, '{"a":' + " " * 16 + "1}")


RELAXED: list[tuple[str, Any]] = [
    ("multipleOf", {"type": "integer", "multipleOf": 3}),
    ("uniqueItems", {"type": "array", "uniqueItems": True}),
    ("contains", {"type": "array", "contains": {"type": "integer"}}),
    ("maxLength", {"type": "string", "pattern": "^a", "maxLength": 9}),
    ("maxLength", {"type": "string", "maxLength": 65}),
    ("minLength", {"type": "string", "format": "date", "minLength": 2}),
    ("pattern", {"type": "string", "pattern": "(?=a)b"}),
    ("not", {"type": "string", "pattern": "^a", "not": {"enum": ["a"]}}),
    ("patternProperties", {"type": "object", "patternProperties": {"^a": {"type": "integer"}}}),
    ("minProperties", {"type": "object", "minProperties": 2}),
]
KEPT: list[Any] = [
    WEATHER,
    {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {"type": "string"}}},
    {"allOf": [{"properties": {"a": {"minimum": 1}}}, {"properties": {"a": {"type": "integer"}}}]},
    {"$ref": "#/$defs/x", "required": ["a"], "$defs": {"x": {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}, "b": {}}, "required": ["b"]}}},
    {"if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {"required": ["b"]}},
    {"dependentRequired": {"a": ["b"]}, "properties": {"a": {}, "b": {}}},
    {"propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": {"type": "integer"}},
    {"patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": False},
    {"properties": {"a": {"minLength": 1}, "b": {"enum": ["x", 1, None, 2.5], "type": ["string", "number"]}}},
]  # fmt: skip


@pytest.mark.parametrize(("keyword", "schema"), RELAXED, ids=str)
def test_what_is_not_enforced_is_reported(keyword: str, schema: Any) -> None:
    coverage = schema_coverage({"type": "object", "properties": {"a": schema}}, "xgrammar")
    location = f"#/properties/a/{keyword}"
    assert location in [use.pointer for use in coverage.relaxed]
    assert all(use.pointer.startswith(location) for use in coverage.relaxed)
    assert coverage.relaxed[0].reason
    assert not coverage.is_sound


@pytest.mark.parametrize("schema", KEPT, ids=str)
def test_what_is_reported_as_enforced_is_enforced(schema: Any) -> None:
    coverage = schema_coverage(schema, "xgrammar")
    assert coverage.is_sound and coverage.enforced


@pytest.mark.parametrize(
    ("schema", "keyword", "status", "said"),
    [
        ({"multipleOf": 3}, "multipleOf", "relaxed", "multipleOf is not enforced"),
        ({"$ref": "https://x.y/z"}, "$ref", "relaxed", "is strict"),
        ({"type": "text"}, "type", "read_as", "is strict"),
        ({"type": "quantity"}, "type", "relaxed", "is strict"),
        ({"minLength": "1"}, "minLength", "relaxed", "is strict"),
    ],
)
def test_what_is_not_enforced_is_named_and_refused_if_strict(
    compiler: Compiler, schema: Any, keyword: str, status: str, said: str
) -> None:
    parameters = {"type": "object", "properties": {"a": schema}}
    uses = getattr(request_of(compiler, parameters).coverage("f"), status)
    assert [use.pointer for use in uses] == [f"#/properties/a/{keyword}"]
    with pytest.raises(UnsupportedSchema, match=said) as refused:
        request_of(compiler, parameters, strict=True)
    assert refused.value.location.endswith(f"#/properties/a/{keyword}") and refused.value.remedy
    assert (refused.value.keyword, refused.value.engine) == (keyword, "xgrammar")


def test_a_schema_without_instances_is_refused_with_its_location(compiler: Compiler) -> None:
    with pytest.raises(UnsupportedSchema, match="no value satisfies") as refused:
        compiler.grammar('{"properties": {"a": false}, "required": ["a"]}', "tools[0]")
    assert (refused.value.location, refused.value.keyword) == ("tools[0]#", "")
    assert refused.value.remedy


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_a_random_model_calls_through_xgrammar(compiler: Compiler, choice: str) -> None:
    tools = [tool(name, WEATHER) for name in ("a", "b")]
    spec = ToolCallSpec.from_openai({"tools": tools, "tool_choice": choice, "first_index": 3})
    calls = 0
    for seed in range(4):
        ids = walk(compiler.compile(spec).matcher(), compiler.vocabulary, seed, WEATHER)
        completion = parse_completion(ids, compiler.vocabulary)
        assert not (completion.cut_calls or completion.malformed)
        for position, call in enumerate(completion.tool_calls):
            assert (call.name in {"a", "b"}) and call.index == 3 + position
            jsonschema.validate(json.loads(call.arguments), WEATHER)
        calls += len(completion.tool_calls)
    assert calls or choice == "auto"


@pytest.mark.slow
def test_each_request_chooses_its_engine(small_compiler: Compiler) -> None:
    tools = [tool("f", {"type": "object", "properties": {"a": {"multipleOf": 2}}})]
    for name in ("llguidance", "xgrammar"):
        coverage = small_compiler.compile(ToolCallSpec.from_openai({"tools": tools, "engine": name})).coverage("f")
        assert (coverage.engine, coverage.is_sound) == (name, name == "llguidance")
    with pytest.raises(InvalidRequest, match="engine"):
        ToolCallSpec.from_openai({"tools": tools, "engine": "outlines"})
