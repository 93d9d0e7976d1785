"""Kimi K3's arguments: exactly the valid objects are written, each value under its own type, in any order of the keys."""

import json
from contextlib import suppress
from functools import cache
from itertools import permutations
from typing import Any

import jsonschema
import pytest

from benchmarks.schemas import corpora
from constrained_k2 import Compiler, ConstrainedK2Error
from constrained_k2.engines.llguidance.engine import LLGuidanceGrammar
from constrained_k2.engines.protocol import ArgumentGrammar
from tests.data import suite
from tests.schema.test_cases import CASES
from tests.schema.test_rules import OBJECTS
from tests.schema.universe import UNIVERSE
from tests.xtml import encode, of_bytes, pieces

BYTES = of_bytes()
ENGINE = Compiler(BYTES).engine("llguidance")
REFERENCES = ("$ref", "$id", "$dynamicRef", "$anchor", "$recursiveRef")


@cache
def compiled(schema: str) -> ArgumentGrammar:
    grammar = ENGINE.compile(schema, "allow", "xtml")
    assert isinstance(grammar, LLGuidanceGrammar) and grammar.any_order
    return grammar


def accepts(grammar: ArgumentGrammar, written: list[str]) -> bool:
    matcher = grammar.matcher("schema")
    return all(map(matcher.accept, encode(BYTES, written))) and matcher.is_complete()


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
    assert not grammar.coverage.narrowed and not grammar.coverage.relaxed, grammar.coverage
    validator = jsonschema.Draft202012Validator(schema)
    for value in UNIVERSE:
        if isinstance(value, dict):
            assert set(accepts_all_orders(grammar, value)) == {validator.is_valid(value)}, value


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("inside", [True, False], ids=["value", "arguments"])
def test_each_keyword_holds(case: dict[str, Any], *, inside: bool) -> None:
    schema = case["schema"]
    if inside:
        if any(f'"{word}"' in json.dumps(schema) for word in REFERENCES):
            return  # it would refer to another place
        draft = {"$schema": schema["$schema"]} if isinstance(schema, dict) and "$schema" in schema else {}
        schema = draft | {"properties": {"x": schema}, "required": ["x"], "additionalProperties": False}
    groups = [
        [{"x": instance} if inside else instance for instance in case[verdict] if inside or isinstance(instance, dict)]
        for verdict in ("accepted", "rejected")
    ]
    if not any(groups):
        return
    grammar = as_json = None
    with suppress(ConstrainedK2Error):
        grammar = compiled(json.dumps(schema))
    with suppress(ConstrainedK2Error):
        as_json = ENGINE.compile(json.dumps(schema))
    if grammar is None or as_json is None:
        assert grammar is as_json or not groups[0]
        return
    assert grammar.coverage == as_json.coverage
    for instance in groups[0] if not grammar.coverage.narrowed else ():
        assert all(accepts_all_orders(grammar, instance)), instance
    for instance in groups[1] if not grammar.coverage.relaxed else ():
        assert not any(accepts_all_orders(grammar, instance)), instance


@pytest.mark.slow
def test_the_suite_is_read_as_in_json() -> None:
    """The public JSON-Schema-Test-Suite: each instance is an argument, and each object arguments, as in JSON."""
    compared = 0
    for case in corpora.suite(suite()):
        document = json.loads(case.schema)
        for inside in (True, False):
            if inside and any(f'"{word}"' in case.schema for word in REFERENCES):
                continue  # it would refer to another place
            values = [json.loads(instance.text) for instance in case.instances]
            values = [{"x": value} if inside else value for value in values if inside or isinstance(value, dict)]
            draft = {"$schema": document["$schema"]} if isinstance(document, dict) else {}
            wrapped = draft | {"properties": {"x": document}, "additionalProperties": False}
            schema = json.dumps(wrapped if inside else document)
            grammar = as_json = None
            with suppress(ConstrainedK2Error):
                grammar = compiled(schema)
            with suppress(ConstrainedK2Error):
                as_json = ENGINE.compile(schema)
            if grammar is None or not isinstance(as_json, LLGuidanceGrammar) or not as_json.any_order:
                continue
            assert not inside or grammar.coverage == as_json.coverage, case.name
            for value in values:
                written = json.dumps(value, ensure_ascii=False).encode()
                matcher = as_json.matcher("schema")
                expected = all(map(matcher.accept, written)) and matcher.is_complete()
                assert accepts(grammar, pieces(value)) == expected, (case.name, value)
                compared += 1
    assert compared > 2_000
