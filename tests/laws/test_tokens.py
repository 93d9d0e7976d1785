"""Tokens that hold several of JSON's structural characters do what their bytes do, one at a time.

The real vocabulary has some 800, such as ``","","``, ``"},{"`` or ``]]``. Each is tried at every place of some texts,
whose items and members are at, below and above their counts.
"""

import json
import random
from collections import Counter
from typing import Any

import pytest

from constrained_k2.schema.undeclared_keys import UndeclaredKeys
from tests.laws.feeding import Bench, Broken, structural_tokens
from tests.laws.laws import Trial

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
PAIR: dict[str, Any] = {
    "type": "object",
    "properties": {"a": STRING, "b": STRING},
    "required": ["a"],
    "additionalProperties": False,
}


def array(items: Any, least: int = 0, most: int = 3, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most, **more}


# Name -> a schema of the member "a" of closed arguments, and its values.
ARRAYS: dict[str, tuple[Any, list[Any]]] = {
    "at most 1 string": (array(STRING, most=1), [["x"]]),
    "at most 2 strings": (array(STRING, most=2), [["x", ""]]),
    "2 or 3 strings": (array(STRING, 2, 3), [["", "", ""]]),
    "exactly 2 listed strings": (array({"enum": ["", ",", "a"]}, 2, 2), [["", ","]]),
    "at most 2 of both": (array({"anyOf": [STRING, INTEGER]}, most=2), [["", 1]]),
    "at most 2 patterned strings": (array({"type": "string", "pattern": '^[a,"]*$'}, most=2), [["a", ""]]),
    "at most 2 short strings": (array(STRING | {"maxLength": 3}, most=2), [["a", ""]]),
    "at most 2 arrays": (array(array(INTEGER, most=1), most=2), [[[], [1]]]),
    "2 to 3 arrays of arrays": (array(array(array(STRING, most=1), most=2), 2, 3), [[[[""], []], [[]]]]),
    "at most 2 objects": (array(PAIR, most=2), [[{"a": "", "b": ""}, {"a": ""}]]),
    "objects with one array": (array({"type": "object", "properties": {"a": array(STRING, most=1)}}, most=2), [[{"a": [""]}, {}]]),
    "any items, at most 2": ({"type": "array", "maxItems": 2}, [["", {"": []}]]),
    "unique strings": (array(STRING, most=2, uniqueItems=True), [["", "a"]]),
    "unique listed strings": (array({"enum": ["", ",", ":", "a"]}, 2, 4, uniqueItems=True), [["", ",", ":"]]),
    "unique numbers": (array(INTEGER, most=2, uniqueItems=True), [[1, 2]]),
    "unique arrays": (array(array(STRING, most=2), most=3, uniqueItems=True), [[[], [""], ["", ""]]]),
    "unique objects": (array(PAIR, most=3, uniqueItems=True), [[{"a": ""}, {"a": "", "b": ""}]]),
    "prefix": ({"type": "array", "prefixItems": [STRING, array(STRING, most=1)], "items": False}, [["", [""]]]),
    "prefix and more": ({"type": "array", "prefixItems": [STRING], "items": PAIR, "maxItems": 2}, [["", {"a": ""}]]),
    "contains": (array(STRING, 1, 3, contains={"const": ""}), [["a", "", "a"]]),
    "at most one of them": (array(STRING, contains={"const": ""}, maxContains=1), [["a", "", "a"]]),
}  # fmt: skip
OBJECTS: dict[str, tuple[Any, list[Any]]] = {
    "closed": (PAIR, [{"b": "", "a": ""}]),
    "open": (PAIR | {"additionalProperties": True}, [{"a": "", "": ""}, {"": {}, "a": ""}]),
    "open to strings": (PAIR | {"additionalProperties": STRING}, [{"": "", "a": ""}]),
    "all required": (PAIR | {"required": ["b", "a"]}, [{"a": "", "b": ""}]),
    "odd names": (
        {"type": "object", "properties": {"": STRING, ",": STRING, ":": PAIR, "}": INTEGER}, "additionalProperties": False},
        [{"": "", ",": "", ":": {"a": ""}, "}": 1}],
    ),
    "record": ({"type": "object", "additionalProperties": STRING}, [{"": "", ",": ""}]),
    "record, at most 2": ({"type": "object", "additionalProperties": STRING, "maxProperties": 2}, [{"": "", ",": ""}]),
    "record, at least 2": ({"type": "object", "additionalProperties": STRING, "minProperties": 2}, [{"": "", ",": ""}]),
    "record of arrays": ({"type": "object", "additionalProperties": array(STRING, most=1)}, [{"": [""], ",": []}]),
    "at most 1": (PAIR | {"required": [], "maxProperties": 1}, [{"a": ""}]),
    "at least 1": (PAIR | {"required": [], "minProperties": 1}, [{"a": ""}]),
    "named keys": (
        {"type": "object", "propertyNames": {"enum": ["", ",", "a"]}, "additionalProperties": STRING}, [{"": "", ",": ""}]
    ),
    "keys of a pattern": (
        {"type": "object", "patternProperties": {"^[,a]?$": STRING}, "additionalProperties": False}, [{"": "", ",": ""}]
    ),
    "one needs the other": (PAIR | {"dependentRequired": {"b": ["a"]}, "required": []}, [{"b": "", "a": ""}]),
    "tagged": (
        {"oneOf": [PAIR | {"properties": PAIR["properties"] | {"a": {"const": one}}} for one in ("", ",")]}, [{"a": "", "b": ""}]
    ),
    "nested": ({"type": "object", "properties": {"a": PAIR, "b": array(PAIR)}}, [{"a": {"a": ""}, "b": [{"a": ""}]}]),
    "any": ({"type": "object"}, [{"": {"": {}}, "a": []}]),
}  # fmt: skip


@pytest.fixture(scope="module", params=["json", pytest.param("xtml", marks=pytest.mark.slow)])
def bench(request: pytest.FixtureRequest, both: tuple[Bench, Bench]) -> Bench:
    found = both[request.param == "xtml"]
    assert len(structural_tokens(found.vocabulary)) > 500
    return found


@pytest.mark.parametrize(
    ("name", "undeclared"), [*((name, "forbid") for name in ARRAYS | OBJECTS), *((name, "allow") for name in OBJECTS)]
)
def test_tokens_do_what_their_bytes_do(bench: Bench, name: str, undeclared: UndeclaredKeys) -> None:
    inner, values = (ARRAYS | OBJECTS)[name]
    schema = {"type": "object", "properties": {"a": inner}, "required": ["a"]}
    trial = Trial(bench, schema, random.Random(name), Counter(), undeclared)
    assert trial.is_complete or undeclared == "forbid"
    broken: dict[str, Broken] = {}
    for value in values:
        matcher = trial.matcher()
        ids = bench.bytewise(trial.pieces({"a": value}))
        for number, token in enumerate(ids):
            before = ids[:number]
            try:
                row = bench.mask(matcher, before)
                bench.direct(matcher, before)
                bench.compare(matcher, before, row.copy())
            except Broken as one:
                broken.setdefault(one.law, one)
            assert matcher.accept(token), json.dumps(value)
        assert matcher.is_complete()
    assert not broken, "\n".join(map(str, broken.values()))
