"""Kimi K3's arguments: exactly the valid objects are written, each value under its own type, in any order of the keys."""

import json
from contextlib import suppress
from functools import cache
from itertools import chain, permutations
from typing import Any

import jsonschema
import pytest

from benchmarks.schemas import corpora
from constrained_k2 import Compiler, ConstrainedK2Error, UnsupportedSchema, Vocabulary
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.forced import forced_ids
from constrained_k2.engines.protocol import ArgumentGrammar
from tests.kit.compilers import narrowed
from tests.kit.data import suite
from tests.kit.grammars import accepts as accepts_json
from tests.kit.grammars import mask_of, takes
from tests.kit.xtml import CLOSE, OPEN, SEPARATOR, SPECIAL, block, encode, of_bytes, pieces, with_xtml_markers
from tests.schema.test_cases import CASES
from tests.schema.test_rules import OBJECTS
from tests.schema.universe import UNIVERSE

BYTES = of_bytes()
ENGINE = Compiler(BYTES).engine("llguidance")
REFERENCES = ("$ref", "$id", "$dynamicRef", "$anchor", "$recursiveRef")


@cache
def compiled(schema: str) -> ArgumentGrammar:
    return ENGINE.compile(schema, "allow", "xtml")


def accepts(grammar: ArgumentGrammar, written: list[str]) -> bool:
    return takes(grammar.matcher("schema"), encode(BYTES, written))


def in_both(schema: str) -> tuple[ArgumentGrammar | None, ArgumentGrammar | None]:
    """Return a schema's grammars of XTML and of JSON; None for one that is refused."""
    xtml = as_json = None
    with suppress(ConstrainedK2Error):
        xtml = compiled(schema)
    with suppress(ConstrainedK2Error):
        as_json = ENGINE.compile(schema)
    return xtml, as_json


def of_member(schema: Any, **closed: Any) -> dict[str, Any] | None:
    """Return a schema of arguments whose member ``x`` has the schema; None if its references would point elsewhere."""
    if any(f'"{word}"' in json.dumps(schema) for word in REFERENCES):
        return None
    draft = {"$schema": schema["$schema"]} if isinstance(schema, dict) and "$schema" in schema else {}
    return draft | closed | {"properties": {"x": schema}, "additionalProperties": False}


def accepts_all_orders(grammar: ArgumentGrammar, value: dict[str, Any]) -> list[bool]:
    return [
        accepts(grammar, pieces(dict(members), separators))
        for members in permutations(value.items())
        for separators in ((",", ":"), (", ", ": "))
    ]


@pytest.mark.parametrize("schema", OBJECTS, ids=json.dumps)
def test_exactly_the_valid_objects_are_written(schema: dict[str, Any]) -> None:
    schema = {"type": "object"} | schema
    grammar = compiled(json.dumps(schema))
    assert not narrowed(grammar.coverage) and not grammar.coverage.relaxed, grammar.coverage
    validator = jsonschema.Draft202012Validator(schema)
    for value in UNIVERSE:
        if isinstance(value, dict):
            assert set(accepts_all_orders(grammar, value)) == {validator.is_valid(value)}, value


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("inside", [True, False], ids=["value", "arguments"])
def test_each_keyword_holds(case: dict[str, Any], *, inside: bool) -> None:
    # Of type object: JSON has other values, which may satisfy a negation that arguments cannot.
    schema = of_member(case["schema"], type="object", required=["x"]) if inside else case["schema"]
    groups = [
        [{"x": instance} if inside else instance for instance in case[verdict] if inside or isinstance(instance, dict)]
        for verdict in ("accepted", "rejected")
    ]
    if schema is None or not any(groups):
        return
    grammar, as_json = in_both(json.dumps(schema))
    if grammar is None or as_json is None:
        assert grammar is as_json or not groups[0]
        return
    assert grammar.coverage == as_json.coverage
    for instance in groups[0] if not narrowed(grammar.coverage) else ():
        assert all(accepts_all_orders(grammar, instance)), instance
    for instance in groups[1] if not grammar.coverage.relaxed else ():
        assert not any(accepts_all_orders(grammar, instance)), instance


def test_undeclared_keys_are_escaped_and_never_declared_ones() -> None:
    properties, others = {'a"&': {"type": "null"}}, {"type": "string"}
    grammar = compiled(json.dumps({"type": "object", "properties": properties, "additionalProperties": others}))
    assert accepts(grammar, pieces({'a"&': None, "&quot;": "x", '"': "", "a": "\n"}))
    assert not accepts(grammar, pieces({'a"&': "x"}))
    for key in ('a"&', "&amp", "&lt;"):
        written = [OPEN, f'argument key="{key}" type="string"', SEPARATOR, "", CLOSE, "argument", SEPARATOR]
        assert not accepts(grammar, written)


def test_a_string_may_spell_any_marker() -> None:
    grammar = compiled('{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}')
    for text in (*SPECIAL, "".join(block("b", "string", "x")), '"', "\\", "\0", " x ", "null", "\U0010ffff"):
        assert accepts(grammar, pieces({"a": text}))
    assert not accepts(grammar, pieces({"a": "x"})[:4])
    assert not accepts(grammar, pieces({"a": "x"})[:6])


@pytest.mark.parametrize(
    "written",
    [
        block("n", "number", " 1"),
        block("n", "number", "1 "),
        block("n", "integer", "1"),
        block("n", "string", "1"),
        block("l", "array", "[1] "),
        block("n", "number", "1") + block("n", "number", "2"),
        block("n", "number", "1")[:2] + block("l", "array", "[]")[2:],
        ["", "argument", "", "", "", "", ""],
    ],
    ids=" ".join,
)
def test_what_is_not_written(written: list[str]) -> None:
    schema = {"properties": {"n": {"type": "integer"}, "l": {"items": {"type": "integer"}, "type": "array"}}}
    grammar = ENGINE.compile(json.dumps({"type": "object"} | schema), "forbid", "xtml")
    assert accepts(grammar, block("n", "number", "1") + block("l", "array", "[ 1 , 2 ]"))
    assert accepts(grammar, [])
    ids = [[BYTES.special_tokens[piece]] if piece in SPECIAL else BYTES.encode(piece) for piece in written]
    assert not takes(grammar.matcher("schema"), chain.from_iterable(ids))


@pytest.mark.parametrize("count", [64, 65, 70])
def test_many_required_keys(count: int) -> None:
    keys = [f"k{number:03}" for number in range(count)]
    kinds = {"type": ["number", "string"]}
    schema = {"type": "object", "properties": dict.fromkeys(keys, kinds), "required": keys}
    grammar = compiled(json.dumps(schema))
    value = {key: number if number % 2 else str(number) for number, key in enumerate(keys)}
    assert accepts(grammar, pieces(value))
    assert not accepts(grammar, pieces({key: value[key] for key in keys[:-1]}))
    assert bool(narrowed(grammar.coverage)) == (count > 64)


def test_any_split_of_a_tag_is_allowed(small_vocabulary: Vocabulary) -> None:
    """Checkpoints write names in pieces: masks force no other split of the only possible text."""
    vocabulary = with_xtml_markers(small_vocabulary)
    schema = '{"type": "object", "properties": {"_id": {"type": "string"}}, "required": ["_id"]}'
    grammar = LLGuidanceEngine(vocabulary).compile(schema, "forbid", "xtml")
    (begin, head, *_) = pieces({"_id": ""})
    whole = vocabulary.encode(head)
    for ids in (whole, list(chain.from_iterable(map(vocabulary.encode, head)))):
        matcher = grammar.matcher("schema")
        forced = matcher.forced_tokens()
        assert vocabulary.decode(forced) == begin + head + SEPARATOR
        assert all(map(matcher.fork().accept, forced))
        assert matcher.accept(vocabulary.special_tokens[begin])
        for token in ids:
            assert matcher.forced_tokens()
            assert token in mask_of(matcher, vocabulary)
            assert matcher.accept(token)


@pytest.mark.slow
def test_the_other_engine_refuses() -> None:
    with pytest.raises(UnsupportedSchema, match="LLGuidance only"):
        Compiler(Vocabulary.of_bytes()).engine("xgrammar").compile('{"type": "object"}', "allow", "xtml")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (b'\xff[300]argument key="_id" type="string"\xff[301]', [300, b"argument", b" key", b'="', b"_id", b'"', b" type", b'="',
         b"string", b'"', 301]),
        (b'\xff[300]argument key="', [300, b"argument", b" key"]),
        (b'="a" type="', [b'="a"', b" type"]),
        (b'","b":', []),
        (b"", []),
    ],
)  # fmt: skip
def test_forced_text_as_tokens(text: bytes, tokens: list[int | bytes]) -> None:
    pieces_of: list[bytes] = []

    def tokenize(piece: bytes) -> list[int]:
        pieces_of.append(piece)
        return [-len(pieces_of)]

    found = forced_ids(text, tokenize)
    assert [token if token > 0 else pieces_of[-token - 1] for token in found] == tokens


@pytest.mark.slow
def test_the_suite_is_read_as_in_json() -> None:
    """The public JSON-Schema-Test-Suite: each instance is an argument, and each object arguments, as in JSON."""
    compared = 0
    for case in corpora.suite(suite()):
        document = json.loads(case.schema)
        for inside, schema in ((True, of_member(document)), (False, document)):
            values = [json.loads(instance.text) for instance in case.instances]
            values = [{"x": value} if inside else value for value in values if inside or isinstance(value, dict)]
            grammar, as_json = (None, None) if schema is None else in_both(json.dumps(schema))
            if grammar is None or as_json is None:
                continue
            assert not inside or grammar.coverage == as_json.coverage, case.name
            for value in values:
                expected = accepts_json(as_json, value, (", ", ": "))
                assert accepts(grammar, pieces(value)) == expected, (case.name, value)
                compared += 1
    assert compared > 2_000
