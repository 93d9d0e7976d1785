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
from tests.engines.masked_walks import vocabulary_of, walk, write
from tests.kit.budget import tries
from tests.kit.grammars import mask_of

PIECES = (
    '"a"', '"a":', '":', '"a":1', ',"a":', '{"a":', '"b', 'b"', 'a":', '":1,"', '":1,"a":', '"a":1,"a"', '":"a","', '":"', "ab",
    '"}', '","', '","a":', "},", '},"a":', '{"', '":{"', '":{"a":', "\\u0061", "\\u00", '61"', '61":', "\\", '\\"', '\\"":', '\\\\"',
    'n":', "\\ud83d", "\\ude00", '\\ude00":', "😀", "é", 'é":', "1,", '1,"', '""', '"":', ':"",', ': "', ' "a', "}}", "[{", "]",
)  # fmt: skip
STRING, INTEGER = {"type": "string"}, {"type": "integer"}
LETTERS = {"^[ab]{1,6}$": INTEGER}
SCHEMAS: dict[str, dict[str, Any]] = {
    "open": {"additionalProperties": INTEGER},
    "strings": {"additionalProperties": STRING},
    "any": {"properties": {"a": {}}, "required": ["a"]},
    "nested": {"additionalProperties": {"$ref": "#"}, "maxProperties": 3},
    "declared": {"properties": {"a": STRING, "b": INTEGER}, "additionalProperties": INTEGER},
    "pattern": {"patternProperties": {"^a": INTEGER}, "additionalProperties": False},
    "few": {"patternProperties": LETTERS, "additionalProperties": False},
    "few and declared": {"properties": {"ab": INTEGER, "c": INTEGER}, "patternProperties": LETTERS, "additionalProperties": False},
    "at least": {"additionalProperties": INTEGER, "minProperties": 3},
    "as many": {"additionalProperties": INTEGER, "minProperties": 3, "maxProperties": 3},
    "some declared": {"properties": {"a": STRING, "b": INTEGER}, "additionalProperties": INTEGER, "required": ["a"],
                      "minProperties": 3, "maxProperties": 4},
    "at least, by pattern": {"patternProperties": {"^a[ab]*$": INTEGER}, "additionalProperties": False, "minProperties": 2},
    "listed": {"patternProperties": {"^(?:[ab]|ab)$": INTEGER}, "additionalProperties": False, "minProperties": 2},
    "names": {"propertyNames": {"enum": ["a", "b", "aé😀", "\x1f"]}, "additionalProperties": INTEGER, "minProperties": 2},
    "many declared": {"properties": {f"a{number}": INTEGER for number in range(70)}},
    "unique items": {"additionalProperties": {"type": "array", "items": STRING, "uniqueItems": True}},
}  # fmt: skip
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
    alone = (LLGuidanceMatcher(grammar, "") for _ in range(12))
    texts = [walk(one, pieces, random.Random(seed), lambda _: LIKELY, 150) for seed, one in enumerate(alone)]
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
    matcher = matcher_of(engine, schema)
    assert write(matcher, pieces, '{"p":[', text) == text
    allowed = mask_of(matcher, pieces)
    assert allowed and ord('"') not in allowed
    assert write(matcher, pieces, 'x":null') == ""


def test_where_every_key_that_begins_so_has_been_written_one_comes_again(
    engine: LLGuidanceEngine, pieces: Vocabulary
) -> None:
    matcher = matcher_of(engine, SCHEMAS["few"])
    assert write(matcher, pieces, '{"aaaaaa":1,"aaaaa":1') == ""
    assert write(matcher, pieces, ',"aaaaa"') == ',"aaaaa"'
    assert {*map(pieces.ordinary_bytes, mask_of(matcher, pieces))} == {b"a", b"b", b'b"'}
    assert write(matcher, pieces, 'a":1') == ""


def test_few_keys_are_like_declared_ones(engine: LLGuidanceEngine, pieces: Vocabulary) -> None:
    """Their grammar needs no filter, and counts them."""
    for name in ("names", "listed"):
        matcher = matcher_of(engine, SCHEMAS[name])
        assert type(matcher) is LLGuidanceMatcher
        assert write(matcher, pieces, '{"a":1') == ""
        assert ord("}") not in mask_of(matcher, pieces)
        assert write(matcher, pieces, ',"a"') == ',"a"'


def test_keys_of_arguments_as_xml() -> None:
    vocabulary = Vocabulary.of_bytes(KIMI_K3)
    engine = LLGuidanceEngine(vocabulary, threads=1)
    others = {"type": ["object", "string"]}
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": others}
    matcher = engine.compile(json.dumps(schema), encoding="xtml").matcher("")
    end = (CLOSE, "argument", SEPARATOR)
    assert write(matcher, vocabulary, OPEN, 'argument key="a&quot;" type="string"', SEPARATOR, '"a"', *end) == ""
    text = '{"a":{"b":0},"b":1,"a"'
    assert write(matcher, vocabulary, OPEN, 'argument key="a" type="object"', SEPARATOR, text) == text
    assert write(matcher, vocabulary, 'c":2}', *end, OPEN) == ""
    fork = matcher.fork()
    for each in (matcher, fork):
        assert write(each, vocabulary, 'argument key="a"') == 'argument key="a"'
        assert ord('"') not in mask_of(each, vocabulary)
        assert write(each, vocabulary, '&quot;"') == '&quot;"'
        assert write(each, vocabulary, 'b" type="string"', SEPARATOR, *end) == ""
        each.rollback(1)


@pytest.mark.slow
def test_of_many_keys_none_comes_again(engine: LLGuidanceEngine, pieces: Vocabulary) -> None:
    matcher = matcher_of(engine, SCHEMAS["open"])
    text = json.dumps({f"{number}": 1 for number in range(20_000)}, separators=(",", ":"))
    assert write(matcher, pieces, text[:-1] + ',"777') == ""
    for _ in range(3):
        assert ord('"') not in mask_of(matcher, pieces)
        assert not matcher.accept(ord('"'))
    matcher.rollback(len(text) + 3)
    assert write(matcher, pieces, '"777"') == ""
