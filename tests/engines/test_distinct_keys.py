"""Objects with open keys: no key twice, in no spelling, and no mask without a way on, whatever tokens cut the text."""

import json
import random
from typing import Any

import jsonschema
import pytest

from constrained_k2 import Vocabulary
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.formats.kimi_k3 import CLOSE, KIMI_K3, OPEN, SEPARATOR
from constrained_k2.vocabulary.bitmask import allocate_bitmask, allowed_ids
from tests.engines.masked_walks import vocabulary_of, walk, write
from tests.kit.budget import tries

PIECES = (
    '"a"', '"a":', '":', '"a":1', ',"a":', '{"a":', '"b', 'b"', 'a":', '":1,"', '":1,"a":', '"a":1,"a"', '":"a","', '":"', "ab",
    '"}', '","', '","a":', "},", '},"a":', '{"', '":{"', '":{"a":', "\\u0061", "\\u00", '61"', '61":', "\\", '\\"', '\\"":', '\\\\"',
    'n":', "\\ud83d", "\\ude00", '\\ude00":', "😀", "é", 'é":', "1,", '1,"', '""', '"":', ':"",', ': "', ' "a', "}}", "[{", "]",
)  # fmt: skip
STRING: dict[str, Any] = {"type": "string"}
LETTERS = {"^[ab]{1,6}$": {"type": "integer"}}
SCHEMAS: dict[str, dict[str, Any]] = {
    "open": {"additionalProperties": {"type": "integer"}},
    "strings": {"additionalProperties": STRING},
    "any": {"properties": {"a": {}}, "required": ["a"]},
    "nested": {"additionalProperties": {"$ref": "#"}, "maxProperties": 3},
    "declared": {"properties": {"a": STRING, "b": {"type": "integer"}}, "additionalProperties": {"type": "integer"}},
    "pattern": {"patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": False},
    "few": {"patternProperties": LETTERS, "additionalProperties": False},
    "few and declared": {
        "properties": {"ab": {"type": "integer"}, "c": {"type": "integer"}},
        "patternProperties": LETTERS,
        "additionalProperties": False,
    },
    "at least": {"additionalProperties": {"type": "integer"}, "minProperties": 3},
    "as many": {"additionalProperties": {"type": "integer"}, "minProperties": 3, "maxProperties": 3},
    "some declared": {
        "properties": {"a": STRING, "b": {"type": "integer"}},
        "additionalProperties": {"type": "integer"},
        "required": ["a"],
        "minProperties": 3,
        "maxProperties": 4,
    },
    "at least, by pattern": {"patternProperties": {"^a[ab]*$": {"type": "integer"}}, "additionalProperties": False}
    | {"minProperties": 2},
    "listed": {
        "patternProperties": {"^(?:[ab]|ab)$": {"type": "integer"}},
        "additionalProperties": False,
        "minProperties": 2,
    },
    "names": {
        "propertyNames": {"enum": ["a", "b", "aé😀", "\x1f"]},
        "additionalProperties": {"type": "integer"},
        "minProperties": 2,
    },
    "many declared": {"properties": {f"a{number}": {"type": "integer"} for number in range(70)}},
    "unique items": {"additionalProperties": {"type": "array", "items": STRING, "uniqueItems": True}},
}
FINITE = {"few", "few and declared", "many declared"}
"""The schemas whose keys may run out."""


@pytest.fixture(scope="module")
def pieces() -> Vocabulary:
    """The bytes, and tokens that reach over the ends of keys."""
    return vocabulary_of(PIECES, b"\xc3", b'\xa9":', b"\xf0\x9f", b"\xff")


@pytest.fixture(scope="module")
def engine(pieces: Vocabulary) -> LLGuidanceEngine:
    return LLGuidanceEngine(pieces, threads=1)


def matcher_of(engine: LLGuidanceEngine, schema: dict[str, Any]) -> LLGuidanceMatcher:
    grammar = engine.compile(json.dumps({"type": "object"} | schema), "forbid")
    assert grammar.coverage.is_sound
    return grammar.matcher("")


def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Decode an object whose keys are distinct."""
    assert len(dict(members)) == len(members), members
    return dict(members)


def repeats(text: bytes) -> bool:
    try:
        json.loads(text, object_pairs_hook=pairs)
    except AssertionError:
        return True
    return False


LIKELY = b'"},:a1\\u0061'
"""The bytes that end keys and values, and a few letters."""


@pytest.mark.parametrize("name", SCHEMAS)
def test_no_key_is_written_twice(name: str, engine: LLGuidanceEngine, pieces: Vocabulary) -> None:
    schema, ended, repeated = SCHEMAS[name], 0, 0
    for seed in range(tries(12, fast=4, everything=12)):
        text = walk(matcher_of(engine, schema), pieces, random.Random(seed), lambda _: LIKELY, 150)
        if text is not None:
            jsonschema.validate(json.loads(text), schema)
            ended += 1
            repeated += repeats(text)
    assert ended
    assert not repeated or name in FINITE


def test_these_walks_repeat_keys_without_the_filter(engine: LLGuidanceEngine, pieces: Vocabulary) -> None:
    grammar = engine.compile(json.dumps({"type": "object"} | SCHEMAS["open"]))
    texts = [
        walk(LLGuidanceMatcher(grammar, ""), pieces, random.Random(seed), lambda _: LIKELY, 150) for seed in range(12)
    ]
    assert any(repeats(text) for text in texts if text is not None)


REPEATED = (
    '{"a":1,"a"', '{"a":1,"\\u0061"', '{"\\u0061":1,"a"', '{"a\\/":1,"a/"', '{"\\ud83d\\ude00":1,"😀"',
    '{"😀":1,"\\ud83D\\uDE00"', '{"\\u00e9\\n":1,"é\\u000A"', '{"":1,""',
    '{"a":{"a":[{"a":"\\"a\\",\\\\"},{"b":1 , "a":0,"b"', '{"a":{"b":"}"},"b":[],"a"',
)  # fmt: skip


@pytest.mark.parametrize("text", REPEATED)
def test_a_key_is_found_in_each_spelling(text: str, engine: LLGuidanceEngine, pieces: Vocabulary) -> None:
    """Also in objects that may hold anything, where keys have many spellings."""
    schema = {"properties": {"p": {"type": "array"}}, "required": ["p"]}
    matcher, row = matcher_of(engine, schema), allocate_bitmask(1, pieces.size)[0]
    assert write(matcher, pieces, '{"p":[', text) == text
    matcher.fill(row)
    allowed = allowed_ids(row)
    assert len(allowed)
    assert ord('"') not in allowed
    assert write(matcher, pieces, 'x":null') == ""


def test_where_every_key_that_begins_so_has_been_written_one_comes_again(
    engine: LLGuidanceEngine, pieces: Vocabulary
) -> None:
    matcher, row = matcher_of(engine, SCHEMAS["few"]), allocate_bitmask(1, pieces.size)[0]
    assert write(matcher, pieces, '{"aaaaaa":1,"aaaaa":1') == ""
    assert write(matcher, pieces, ',"aaaaa"') == ',"aaaaa"'
    matcher.fill(row)
    assert {bytes(pieces.ordinary_bytes(int(one))) for one in allowed_ids(row)} == {b"a", b"b", b'b"'}
    assert write(matcher, pieces, 'a":1') == ""


def test_few_keys_are_like_declared_ones(engine: LLGuidanceEngine, pieces: Vocabulary) -> None:
    """Their grammar needs no filter, and counts them."""
    for name in ("names", "listed"):
        matcher, row = matcher_of(engine, SCHEMAS[name]), allocate_bitmask(1, pieces.size)[0]
        assert type(matcher) is LLGuidanceMatcher
        assert write(matcher, pieces, '{"a":1') == ""
        matcher.fill(row)
        assert ord("}") not in allowed_ids(row)
        assert write(matcher, pieces, ',"a"') == ',"a"'


def test_keys_of_arguments_as_xml() -> None:
    vocabulary = Vocabulary.of_bytes(KIMI_K3)
    engine = LLGuidanceEngine(vocabulary, threads=1)
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "additionalProperties": {"type": ["object", "string"]},
    }
    matcher = engine.compile(json.dumps(schema), encoding="xtml").matcher("")
    end, row = (CLOSE, "argument", SEPARATOR), allocate_bitmask(1, vocabulary.size)[0]
    assert write(matcher, vocabulary, OPEN, 'argument key="a&quot;" type="string"', SEPARATOR, '"a"', *end) == ""
    text = '{"a":{"b":0},"b":1,"a"'
    assert write(matcher, vocabulary, OPEN, 'argument key="a" type="object"', SEPARATOR, text) == text
    assert write(matcher, vocabulary, 'c":2}', *end, OPEN) == ""
    fork = matcher.fork()
    for each in (matcher, fork):
        assert write(each, vocabulary, 'argument key="a"') == 'argument key="a"'
        each.fill(row)
        assert ord('"') not in allowed_ids(row)
        assert write(each, vocabulary, '&quot;"') == '&quot;"'
        assert write(each, vocabulary, 'b" type="string"', SEPARATOR, *end) == ""
        each.rollback(1)


@pytest.mark.slow
def test_of_many_keys_none_comes_again(engine: LLGuidanceEngine, pieces: Vocabulary) -> None:
    matcher = matcher_of(engine, SCHEMAS["open"])
    row = allocate_bitmask(1, pieces.size)[0]
    text = json.dumps({f"{number}": 1 for number in range(20_000)}, separators=(",", ":"))
    assert write(matcher, pieces, text[:-1] + ',"777') == ""
    for _ in range(3):
        matcher.fill(row)
        assert ord('"') not in allowed_ids(row)
        assert not matcher.accept(ord('"'))
    matcher.rollback(len(text) + 3)
    assert write(matcher, pieces, '"777"') == ""
