"""Arrays of unequal items: no item twice, no mask without a way on, whatever tokens cut the text into."""

import json
import random
from typing import Any

import jsonschema
import pytest

from constrained_k2 import UnsupportedSchema, Vocabulary
from constrained_k2.engines.llguidance.direct.rules import direct_model
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.formats.kimi_k3 import CLOSE, KIMI_K3, OPEN, SEPARATOR
from tests.engines.masked_walks import vocabulary_of, walk, write
from tests.kit.budget import tries
from tests.kit.grammars import mask_of

PIECES = (
    '","', '", "', '"],"b":["', '"]', '"a"', '"a","a"', ' "a"', ', "a"', ',"a",', '["a","a"', '["a","b', '"b', 'a"', 'b",',
    'ab"', '","a', '","a"', '","a","', '\\"', '\\"a', '",', '", ', '"a",', '""', '["",""', '","","', "é", "éa", '😀"',
    "1,", "12", "1,1", ",1,", ", 1", "[1,1", ",2]", "0", "-1", "-", ".5", "1.5", "null,", "null", ",null", "true,true",
    "nu", "ll,", " ,", ",\n", " 1,", "0,0,", ",true", "]}", '"a"]', '":["', '{"a":', '},{"', '"}', "{}", "[]", ",{}", ",[]",
    "[[]", "[{}", '{"a":1}', "},", "1}", '"},{"a":"', "}]",
)  # fmt: skip


@pytest.fixture(scope="module")
def pieces() -> Vocabulary:
    """The bytes, and tokens that reach over the ends of items."""
    return vocabulary_of(PIECES, b"\xc3", b'\xa9"', b"\xf0\x9f", b"\xff")


@pytest.fixture(scope="module")
def engine(pieces: Vocabulary) -> LLGuidanceEngine:
    return LLGuidanceEngine(pieces, threads=1)


STRING: dict[str, Any] = {"type": "string"}
ITEMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "strings": (STRING, {}),
    "long strings": (STRING | {"minLength": 2}, {"minItems": 2}),
    "not a": (STRING | {"not": {"enum": ["a", ""]}}, {"minItems": 3}),
    "integers": ({"type": "integer"}, {"minItems": 3}),
    "integers from 10": ({"type": "integer", "minimum": 10}, {"minItems": 3}),
    "few integers": ({"type": "integer", "minimum": -3, "maximum": 60}, {"minItems": 9, "maxItems": 64}),
    "numbers": ({"type": "number"}, {"minItems": 2}),
    "strings and constants": ({"type": ["string", "null", "boolean"]}, {"minItems": 3}),
    "strings and integers": ({"type": ["string", "integer"]}, {"minItems": 3}),
    "numbers and constants": ({"type": ["number", "null", "boolean"]}, {"minItems": 2}),
    "any string or a": ({"oneOf": [{"const": "a"}, STRING]}, {}),
    "60 values": ({"enum": [f"{number}a" for number in range(60)]}, {"minItems": 8, "maxItems": 60}),
    "one value": ({"type": "null"}, {}),
    "two letters": (STRING | {"pattern": "^[ab]{1,2}$"}, {"minItems": 4}),
    "a letter or null": ({"anyOf": [STRING | {"pattern": "^[ab]$"}, {"type": "null"}]}, {"minItems": 3}),
    "the empty string": (STRING | {"pattern": "^$"}, {}),
    "no value": ({"oneOf": [{"type": "null"}, {"type": "null"}]}, {}),
    "letters": (STRING | {"pattern": "^[ab]+$"}, {"minItems": 8}),
    "a prefix": (STRING | {"pattern": "^a"}, {"minItems": 2}),
    "control characters": (STRING | {"pattern": "^[\\x0b\\x1f]{1,2}$"}, {"minItems": 3}),
    "escapes": ({"anyOf": [STRING | {"pattern": r"^\\?n$"}, {"const": "\n"}, {"const": '\\"'}, STRING | {"pattern": '^"$'}]}, {}),
}  # fmt: skip
FINITE: dict[str, dict[str, Any]] = {
    "integers of a range": {"type": "integer", "minimum": -3, "maximum": 70},
    "numbers of a range": {"type": "number", "minimum": 0, "maximum": 1.5},
    "80 values": {"enum": [f"{number}a" for number in range(80)]},
    "one character": STRING | {"maxLength": 1},
    "date": STRING | {"format": "date"},
    "letters or null": {"anyOf": [STRING | {"pattern": "^[ab]{1,6}$"}, {"type": "null"}]},
    "not a and short": STRING | {"not": {"const": "a"}, "maxLength": 2},
    "numbers and constants": {"anyOf": [{"type": "integer"}, {"const": 1.5}, {"const": "a"}, {"const": True}]},
    "multiples": {"type": "integer", "multipleOf": 5},
}
"""Items that may run out: then one comes again, and coverage says so."""


def schema_of(items: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    array = {"type": "array", "items": items, "uniqueItems": True} | limits
    return {"type": "object", "properties": {"a": array, "b": array}, "required": ["a"], "additionalProperties": False}


def matcher_of(engine: LLGuidanceEngine, schema: dict[str, Any]) -> LLGuidanceMatcher:
    grammar = engine.compile(json.dumps(schema))
    assert grammar.coverage.is_sound
    return grammar.matcher("")


def likely(text: bytes) -> bytes:
    """The bytes that the text has already, and those that end something."""
    return text + b'"]}abc,0123'


@pytest.mark.parametrize("name", ITEMS)
def test_no_item_is_written_twice(name: str, engine: LLGuidanceEngine, pieces: Vocabulary) -> None:
    schema = schema_of(*ITEMS[name])
    ended = 0
    for seed in range(tries(12, fast=4, everything=12)):
        text = walk(matcher_of(engine, schema), pieces, random.Random(seed), likely, 400)
        if text is not None:
            jsonschema.validate(json.loads(text), schema)
            ended += 1
    assert ended


@pytest.mark.parametrize("name", FINITE)
def test_where_items_run_out_one_comes_again(name: str, engine: LLGuidanceEngine, pieces: Vocabulary) -> None:
    schema = schema_of(FINITE[name], {})
    grammar = engine.compile(json.dumps(schema))
    assert {use.keyword for use in grammar.coverage.relaxed} == {"uniqueItems"}
    schema["properties"]["a"] = schema["properties"]["b"] = {"items": FINITE[name]}
    for seed in range(tries(6, fast=2, everything=12)):
        text = walk(grammar.matcher(""), pieces, random.Random(seed), likely, 400)
        if text is not None:
            jsonschema.validate(json.loads(text), schema)


AGAIN: list[tuple[dict[str, Any], str, str]] = [
    (FINITE["integers of a range"], "[7,7", ""),
    (FINITE["integers of a range"], "[70,70,7,7,", "[70,70,7,7,"),
    (FINITE["letters or null"], '["a","a"', '["a","a"'),
    (FINITE["letters or null"], '["aaaaaa","aaaaaa"', ""),
    (FINITE["letters or null"], "[null,n", "[null,n"),
]


@pytest.mark.parametrize(("items", "text", "refused"), AGAIN)
def test_only_what_cannot_go_on_comes_again(
    items: dict[str, Any], text: str, refused: str, engine: LLGuidanceEngine, pieces: Vocabulary
) -> None:
    matcher = engine.compile(json.dumps(schema_of(items, {}))).matcher("")
    assert write(matcher, pieces, '{"a":', text) == refused


def test_strings_that_may_go_on_are_not_taken_for_one_terminal(engine: LLGuidanceEngine) -> None:
    """Beside two joined terminals, which both exclude it, ``xyz`` is long enough: no rule has one terminal for all."""
    others = [STRING | {"not": {"enum": [each, "xyz"]}} for each in ("abc", "bcd")]
    grammar = engine.compile(json.dumps(schema_of({"anyOf": [STRING | {"minLength": 2}, *others]}, {})))
    assert grammar.source.plan is not None
    rules = direct_model(grammar.source.plan)
    assert not any(rule.string for rule in rules if rule is not None)


def test_more_strings_than_there_are_cannot_be_demanded(engine: LLGuidanceEngine) -> None:
    with pytest.raises(UnsupportedSchema, match="no value satisfies"):
        engine.compile(json.dumps(schema_of(STRING | {"pattern": "^a$"}, {"minItems": 2})))


UNIQUE = {"type": "array", "items": STRING, "uniqueItems": True}
ONE, TWO = ({"type": "object", "properties": {"k": {"const": k}, "t": UNIQUE}, "required": ["k"]} for k in (1, 2))
PLACES: list[tuple[dict[str, Any], str]] = [
    ({"properties": {"n": {"$ref": "#"}, "t": UNIQUE}}, '{"n":{"n":{"t":["x","x"'),
    ({"additionalProperties": UNIQUE}, '{"b":["x"],"a\\"":["x" , "y","x"'),
    ({"properties": {"a": {"anyOf": [UNIQUE, {"type": "null"}]}}}, '{"a":["x","x"'),
    ({"properties": {"t": UNIQUE}, "anyOf": [{"required": ["t"]}, {"required": ["u"]}]}, '{"t":["x","x"'),
    ({"properties": {"a": {"items": UNIQUE}}}, '{"a":[["x"],["x","x"'),
    ({"properties": {"a": {"prefixItems": [{}, UNIQUE]}}}, '{"a":[["x","x"],["x","x"'),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "text"), PLACES)
def test_arrays_are_found_wherever_they_are(
    schema: dict[str, Any], text: str, engine: LLGuidanceEngine, pieces: Vocabulary
) -> None:
    matcher = matcher_of(engine, {"type": "object"} | schema)
    assert write(matcher, pieces, text) == text
    assert mask_of(matcher, pieces)


OTHERS: list[dict[str, Any]] = [
    {"anyOf": [UNIQUE, {"type": "array", "items": {"type": "integer"}}]},
    {"anyOf": [ONE, TWO]},
    {"anyOf": [ONE, TWO]},
    {"contains": {"const": 1}, "items": {"anyOf": [{"type": "integer"}, UNIQUE]}},
    {"anyOf": [ONE, {"type": "object", "properties": {"k": {"const": 2}, "t": {}}, "required": ["k"]}]},
    {"type": "array", "items": UNIQUE | {"items": {}}, "uniqueItems": True},
    {"type": "array", "items": {"multipleOf": 0.5, "type": "number"}, "uniqueItems": True},
    {"type": "array", "items": {}, "uniqueItems": True},
    {"type": "array", "items": {"type": "object", "properties": {"a": STRING}}, "uniqueItems": True},
    {"type": "array", "items": {"type": ["string", "array"]}, "uniqueItems": True},
    {"type": "array", "prefixItems": [STRING], "items": STRING, "uniqueItems": True},
]


@pytest.mark.parametrize("schema", OTHERS)
def test_what_is_not_compared_is_named(schema: dict[str, Any], engine: LLGuidanceEngine) -> None:
    grammar = engine.compile(json.dumps({"type": "object", "properties": {"a": schema}}))
    assert {use.keyword for use in grammar.coverage.relaxed} == {"uniqueItems"}


def test_alternative_arguments_as_xml() -> None:
    vocabulary = Vocabulary.of_bytes(KIMI_K3)
    engine = LLGuidanceEngine(vocabulary, threads=1)
    schema = {"type": "object", "properties": {"t": UNIQUE}, "anyOf": [{"required": ["t"]}, {"required": ["u"]}]}
    grammar = engine.compile(json.dumps(schema), encoding="xtml")
    assert grammar.coverage.is_sound
    begun = (OPEN, 'argument key="t" type="array"', SEPARATOR)
    assert write(grammar.matcher(""), vocabulary, *begun, '["x","x"]') == '["x","x"'


def test_items_in_arguments_as_xml() -> None:
    vocabulary = Vocabulary.of_bytes(KIMI_K3)
    engine = LLGuidanceEngine(vocabulary, threads=1)
    nested = {"type": ["string", "array"], "items": {"type": "object", "properties": {"x": UNIQUE}}}
    schema = {"type": "object", "properties": {"a": UNIQUE, "b": nested}, "additionalProperties": UNIQUE}
    end = (CLOSE, "argument", SEPARATOR)
    a, b, c = (f'argument key="{key}" type="array"' for key in ("a", "b", "&quot;"))
    matcher = engine.compile(json.dumps(schema), encoding="xtml").matcher("")
    assert write(matcher, vocabulary, OPEN, a, SEPARATOR, '["x","y"]', *end, OPEN) == ""
    fork = matcher.fork()
    refused = write(matcher, vocabulary, b, SEPARATOR, '[{"x":["x"]},{"x":["y","y"]}]', *end)
    assert refused == '[{"x":["x"]},{"x":["y","y"'
    assert write(fork, vocabulary, c, SEPARATOR, '["x","x"]', *end) == '["x","x"'


def test_calls_share_masks_and_not_their_items(engine: LLGuidanceEngine, pieces: Vocabulary) -> None:
    schema, number = schema_of(STRING, {}), pieces.find(b'"a"')
    for _ in range(4):
        matcher = matcher_of(engine, schema)
        for text, is_allowed in ((b'{"a":[', True), (b'"a",', False), (b'"b",', False)):
            assert all(matcher.accept(byte) for byte in text)
            assert (number in mask_of(matcher, pieces)) == is_allowed


@pytest.mark.slow
def test_of_many_items_none_comes_again(engine: LLGuidanceEngine, pieces: Vocabulary) -> None:
    matcher = matcher_of(engine, schema_of(STRING, {}))
    text = json.dumps({"a": [f"{number}" for number in range(20_000)]}, separators=(",", ":"))
    assert write(matcher, pieces, text[:-2] + ',"') == "" and mask_of(matcher, pieces)
    for _ in range(20):
        matcher.rollback(1)
        assert matcher.accept(ord('"')) and mask_of(matcher, pieces)
    assert write(matcher, pieces, '777"') == '777"'


def test_a_key_that_is_another_one_in_some_alternative_finds_no_array(
    engine: LLGuidanceEngine, pieces: Vocabulary
) -> None:
    """Under ``t`` the second alternative allows equal items: they are not forbidden."""
    strings = {"type": "array", "items": STRING}
    others = {"properties": {"u": STRING}, "required": ["u"], "additionalProperties": strings}
    schema = {"type": "object", "anyOf": [{"properties": {"t": UNIQUE}, "required": ["t"]}, others]}
    grammar = engine.compile(json.dumps(schema))
    assert {use.keyword for use in grammar.coverage.relaxed} == {"uniqueItems"}
    assert write(grammar.matcher(""), pieces, '{"u":"","t":["x","x"]}') == ""
