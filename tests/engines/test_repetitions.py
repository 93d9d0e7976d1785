"""No key and no unequal item is written twice, in no spelling, and no mask is without a way on, whatever tokens cut the text."""

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from constrained_k2 import UnsupportedSchema, Vocabulary
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.formats.kimi_k3 import CLOSE, KIMI_K3, OPEN, SEPARATOR
from tests.engines.masked_walks import vocabulary_of, walk, write
from tests.kit.budget import tries
from tests.kit.grammars import mask_of
from tests.laws.values import DuplicateKeyError, decoded

PIECES = (
    '"a"', '"a":', '":', '"a":1', ',"a":', '{"a":', '"b', 'b"', 'a":', '":1,"', '":1,"a":', '"a":1,"a"', '":"a","', '":"', "ab",
    '"}', '","', '","a":', "},", '},"a":', '{"', '":{"', '":{"a":', "\\u0061", "\\u00", '61"', '61":', "\\", '\\"', '\\"":', '\\\\"',
    'n":', "\\ud83d", "\\ude00", '\\ude00":', "😀", "é", 'é":', "1,", '1,"', '""', '"":', ':"",', ': "', ' "a', "}}", "[{", "]",
    '","', '", "', '"],"b":["', '"]', '"a"', '"a","a"', ' "a"', ', "a"', ',"a",', '["a","a"', '["a","b', '"b', 'a"', 'b",',
    'ab"', '","a', '","a"', '","a","', '\\"', '\\"a', '",', '", ', '"a",', '""', '["",""', '","","', "é", "éa", '😀"',
    "1,", "12", "1,1", ",1,", ", 1", "[1,1", ",2]", "0", "-1", "-", ".5", "1.5", "null,", "null", ",null", "true,true",
    "nu", "ll,", " ,", ",\n", " 1,", "0,0,", ",true", "]}", '"a"]', '":["', '{"a":', '},{"', '"}', "{}", "[]", ",{}", ",[]",
    "[[]", "[{}", '{"a":1}', "},", "1}", '"},{"a":"', "}]",
)  # fmt: skip
STRING: dict[str, Any] = {"type": "string"}
INTEGER = {"type": "integer"}
TABLES = json.loads(Path(__file__).with_name("schemas.json").read_text("utf-8"))
KEYS: dict[str, Any] = TABLES["keys"]
KEYS["many declared"] = {"properties": {f"a{number}": INTEGER for number in range(70)}}
FINITE_KEYS = {"few", "few and declared", "many declared"}
"""The schemas whose keys may run out: then one comes again."""
ITEMS: dict[str, Any] = TABLES["unequal items"]
ITEMS["60 values"] = {"items": {"enum": [f"{number}a" for number in range(60)]}, "minItems": 8, "maxItems": 60}
FINITE_ITEMS: dict[str, Any] = TABLES["unequal items that may run out"]
"""Then one comes again, and coverage says so."""
FINITE_ITEMS["80 values"] = {"items": {"enum": [f"{number}a" for number in range(80)]}}
PIECES_VOCABULARY = vocabulary_of(PIECES, b"\xc3", b'\xa9":', b'\xa9"', b"\xf0\x9f", b"\xff")
K3_BYTES = Vocabulary.of_bytes(KIMI_K3)
END = (CLOSE, "argument", SEPARATOR)


@pytest.fixture(scope="module")
def engine() -> LLGuidanceEngine:
    """Over the bytes, and tokens that reach over the ends of keys and items."""
    return LLGuidanceEngine(PIECES_VOCABULARY, threads=1)


@pytest.fixture(scope="module")
def xml_engine() -> LLGuidanceEngine:
    return LLGuidanceEngine(K3_BYTES, threads=1)


def schema_of(array: dict[str, Any]) -> dict[str, Any]:
    array = {"type": "array", "uniqueItems": True} | array
    return {"properties": {"a": array, "b": array}, "required": ["a"], "additionalProperties": False}


def matcher_of(
    engine: LLGuidanceEngine, schema: Any, undeclared_keys: Any = "forbid", encoding: Any = "json"
) -> LLGuidanceMatcher:
    grammar = engine.compile(json.dumps({"type": "object"} | schema), undeclared_keys, encoding)
    assert grammar.coverage.is_sound
    return grammar.matcher("")


def written(matcher: Any, *parts: str) -> str:
    return write(matcher, PIECES_VOCABULARY, *parts)


def texts_of(engine: LLGuidanceEngine, schema: Any, count: int, *, is_filtered: bool = True) -> list[bytes]:
    """The texts of walks that end."""
    grammar = engine.compile(json.dumps({"type": "object"} | schema), "forbid")
    found = []
    for seed in range(count):
        matcher = grammar.matcher("") if is_filtered else LLGuidanceMatcher(grammar, "")
        text = walk(matcher, PIECES_VOCABULARY, random.Random(seed), lambda text: text + b'"]}abc,:0123', 300).text
        found += [] if text is None else [text]
    return found


def repeats(text: bytes) -> bool:
    try:
        decoded(text.decode())
    except DuplicateKeyError:
        return True
    return False


CASES = {f"keys, {name}": schema for name, schema in KEYS.items()} | {
    f"items, {name}": schema_of(array) for name, array in ITEMS.items()
}


@pytest.mark.parametrize("name", CASES)
def test_no_key_and_no_item_is_written_twice(name: str, engine: LLGuidanceEngine) -> None:
    assert matcher_of(engine, CASES[name])
    texts = texts_of(engine, CASES[name], tries(12, fast=4, everything=12))
    assert texts
    for text in texts:
        jsonschema.validate(json.loads(text), CASES[name])
        assert not repeats(text) or name.removeprefix("keys, ") in FINITE_KEYS


def test_these_walks_repeat_keys_without_the_filter(engine: LLGuidanceEngine) -> None:
    assert any(map(repeats, texts_of(engine, KEYS["open"], 12, is_filtered=False)))


@pytest.mark.parametrize("name", FINITE_ITEMS)
def test_where_items_run_out_one_comes_again(name: str, engine: LLGuidanceEngine) -> None:
    schema = schema_of(FINITE_ITEMS[name])
    coverage = engine.compile(json.dumps({"type": "object"} | schema)).coverage
    assert {use.keyword for use in coverage.relaxed} == {"uniqueItems"}
    texts = texts_of(engine, schema, tries(6, fast=2, everything=12))
    schema["properties"]["a"] = schema["properties"]["b"] = FINITE_ITEMS[name]
    for text in texts:
        jsonschema.validate(json.loads(text), schema)


REPEATED = (
    '{"a":1,"a"', '{"a":1,"\\u0061"', '{"\\u0061":1,"a"', '{"a\\/":1,"a/"', '{"\\ud83d\\ude00":1,"😀"',
    '{"😀":1,"\\ud83D\\uDE00"', '{"\\u00e9\\n":1,"é\\u000A"', '{"":1,""',
    '{"a":{"a":[{"a":"\\"a\\",\\\\"},{"b":1 , "a":0,"b"', '{"a":{"b":"}"},"b":[],"a"',
)  # fmt: skip


@pytest.mark.parametrize("text", REPEATED)
def test_a_key_is_found_in_each_spelling(text: str, engine: LLGuidanceEngine) -> None:
    """Also in objects that may hold anything, where keys have many spellings."""
    matcher = matcher_of(engine, {"properties": {"p": {"type": "array"}}, "required": ["p"]})
    assert written(matcher, '{"p":[', text) == text
    allowed = mask_of(matcher, PIECES_VOCABULARY)
    assert allowed and ord('"') not in allowed
    assert written(matcher, 'x":null') == ""


def test_where_every_key_that_begins_so_has_been_written_one_comes_again(engine: LLGuidanceEngine) -> None:
    matcher = matcher_of(engine, KEYS["few"])
    assert written(matcher, '{"aaaaaa":1,"aaaaa":1') == ""
    assert written(matcher, ',"aaaaa"') == ',"aaaaa"'
    assert {*map(PIECES_VOCABULARY.ordinary_bytes, mask_of(matcher, PIECES_VOCABULARY))} == {b"a", b"b", b'b"'}
    assert written(matcher, 'a":1') == ""


@pytest.mark.parametrize("name", ["names", "listed"])
def test_few_keys_are_like_declared_ones(name: str, engine: LLGuidanceEngine) -> None:
    """Their grammar needs no filter, and counts them."""
    matcher = matcher_of(engine, KEYS[name])
    assert matcher.uniqueness_filter is None
    assert written(matcher, '{"a":1') == ""
    assert ord("}") not in mask_of(matcher, PIECES_VOCABULARY)
    assert written(matcher, ',"a"') == ',"a"'


AGAIN: list[tuple[dict[str, Any], str, str]] = [
    (FINITE_ITEMS["integers of a range"], "[7,7", ""),
    (FINITE_ITEMS["integers of a range"], "[70,70,7,7,", "[70,70,7,7,"),
    (FINITE_ITEMS["letters or null"], '["a","a"', '["a","a"'),
    (FINITE_ITEMS["letters or null"], '["aaaaaa","aaaaaa"', ""),
    (FINITE_ITEMS["letters or null"], "[null,n", "[null,n"),
]


@pytest.mark.parametrize(("items", "text", "refused"), AGAIN)
def test_only_what_cannot_go_on_comes_again(
    items: dict[str, Any], text: str, refused: str, engine: LLGuidanceEngine
) -> None:
    grammar = engine.compile(json.dumps({"type": "object"} | schema_of(items)))
    assert written(grammar.matcher(""), '{"a":', text) == refused


def test_more_strings_than_there_are_cannot_be_demanded(engine: LLGuidanceEngine) -> None:
    with pytest.raises(UnsupportedSchema, match="no value satisfies"):
        matcher_of(engine, schema_of({"items": STRING | {"pattern": "^a$"}, "minItems": 2}))


UNIQUE = {"type": "array", "items": STRING, "uniqueItems": True}


@pytest.mark.parametrize(("schema", "text"), TABLES["texts that repeat an item"])
def test_arrays_are_found_wherever_they_are(schema: dict[str, Any], text: str, engine: LLGuidanceEngine) -> None:
    matcher = matcher_of(engine, schema, "allow")
    assert written(matcher, text) == text
    assert mask_of(matcher, PIECES_VOCABULARY)


@pytest.mark.parametrize("schema", TABLES["items that are not compared"])
def test_what_is_not_compared_is_named(schema: dict[str, Any], engine: LLGuidanceEngine) -> None:
    grammar = engine.compile(json.dumps({"type": "object", "properties": {"a": schema}}))
    assert {use.keyword for use in grammar.coverage.relaxed} == {"uniqueItems"}


def test_a_key_that_is_another_one_in_some_alternative_finds_no_array(engine: LLGuidanceEngine) -> None:
    """Under ``t`` the second alternative allows equal items: they are not forbidden."""
    strings = {"type": "array", "items": STRING}
    others = {"properties": {"u": STRING}, "required": ["u"], "additionalProperties": strings}
    schema = {"type": "object", "anyOf": [{"properties": {"t": UNIQUE}, "required": ["t"]}, others]}
    grammar = engine.compile(json.dumps(schema))
    assert {use.keyword for use in grammar.coverage.relaxed} == {"uniqueItems"}
    assert written(grammar.matcher(""), '{"u":"","t":["x","x"]}') == ""


def test_keys_of_arguments_as_xml(xml_engine: LLGuidanceEngine) -> None:
    others = {"type": ["object", "string"]}
    matcher = matcher_of(xml_engine, {"properties": {"n": INTEGER}, "additionalProperties": others}, "allow", "xtml")
    assert write(matcher, K3_BYTES, OPEN, 'argument key="a&quot;" type="string"', SEPARATOR, '"a"', *END) == ""
    text = '{"a":{"b":0},"b":1,"a"'
    assert write(matcher, K3_BYTES, OPEN, 'argument key="a" type="object"', SEPARATOR, text) == text
    assert write(matcher, K3_BYTES, 'c":2}', *END, OPEN) == ""
    for each in (matcher, matcher.fork()):
        assert write(each, K3_BYTES, 'argument key="a"') == 'argument key="a"'
        assert ord('"') not in mask_of(each, K3_BYTES)
        assert write(each, K3_BYTES, '&quot;"') == '&quot;"'
        assert write(each, K3_BYTES, 'b" type="string"', SEPARATOR, *END) == ""
        each.rollback(1)


def test_items_in_arguments_as_xml(xml_engine: LLGuidanceEngine) -> None:
    nested = {"type": ["string", "array"], "items": {"type": "object", "properties": {"x": UNIQUE}}}
    schema = {"properties": {"a": UNIQUE, "b": nested}, "additionalProperties": UNIQUE}
    a, b, c = (f'argument key="{key}" type="array"' for key in ("a", "b", "&quot;"))
    matcher = matcher_of(xml_engine, schema, "allow", "xtml")
    assert write(matcher, K3_BYTES, OPEN, a, SEPARATOR, '["x","y"]', *END, OPEN) == ""
    fork = matcher.fork()
    refused = write(matcher, K3_BYTES, b, SEPARATOR, '[{"x":["x"]},{"x":["y","y"]}]', *END)
    assert refused == '[{"x":["x"]},{"x":["y","y"'
    assert write(fork, K3_BYTES, c, SEPARATOR, '["x","x"]', *END) == '["x","x"'
    either = {"properties": {"a": UNIQUE}, "anyOf": [{"required": ["a"]}, {"required": ["u"]}]}
    matcher = matcher_of(xml_engine, either, "allow", "xtml")
    assert write(matcher, K3_BYTES, OPEN, a, SEPARATOR, '["x","x"]') == '["x","x"'


def test_calls_share_masks_and_not_their_items(engine: LLGuidanceEngine) -> None:
    schema, number = schema_of({"items": STRING}), PIECES_VOCABULARY.find(b'"a"')
    for _ in range(4):
        matcher = matcher_of(engine, schema)
        for text, is_allowed in ((b'{"a":[', True), (b'"a",', False), (b'"b",', False)):
            assert all(matcher.accept(byte) for byte in text)
            assert (number in mask_of(matcher, PIECES_VOCABULARY)) == is_allowed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "begun", "each"), [(KEYS["open"], "{", '"{}":1'), (schema_of({"items": STRING}), '{"a":[', '"{}"')]
)
def test_of_many_keys_or_items_none_comes_again(
    schema: dict[str, Any], begun: str, each: str, engine: LLGuidanceEngine
) -> None:
    matcher = matcher_of(engine, schema)
    text = begun + ",".join(map(each.format, range(20_000))) + ',"777'
    assert written(matcher, text) == ""
    for _ in range(3):
        matcher.rollback(1)
        assert matcher.accept(ord("7"))
        assert mask_of(matcher, PIECES_VOCABULARY) and ord('"') not in mask_of(matcher, PIECES_VOCABULARY)
        assert not matcher.accept(ord('"'))
    matcher.rollback(len(text) - len(begun))
    assert written(matcher, '"777"') == ""
