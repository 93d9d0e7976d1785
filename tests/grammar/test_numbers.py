"""Any two kinds of numbers may stand in the same place: each value of either is written, and nothing else.

LLGuidance's lexer goes on with the longer of two terminals and never returns: a terminal that begins another one's text
and cannot end as a number there, as a sign, would never end.
"""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from itertools import combinations_with_replacement
from typing import Any

import jsonschema
import pytest

from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from tests.engines.masked_walks import vocabulary_of
from tests.kit.grammars import takes

NO_INTEGER = {"type": "number", "not": {"type": "integer"}}
KINDS: dict[str, Any] = {
    "integers": {"type": "integer"},
    "numbers": {"type": "number"},
    "negative integers": {"type": "integer", "maximum": -1},
    "from below zero": {"type": "number", "exclusiveMinimum": -0.5},
    "negative fractions": {"type": "number", "minimum": -3.25, "exclusiveMaximum": -0.2},
    "between fractions": {"type": "number", "minimum": 0.1, "maximum": 7.5},
    "fives": {"type": "integer", "multipleOf": 5},
    "sevens": {"type": "number", "multipleOf": 7, "maximum": 70},
    "negative tens": {"type": "integer", "multipleOf": 10, "maximum": -10},
    "tenths": {"type": "number", "multipleOf": 0.1},
    "tenths around zero": {"type": "number", "minimum": -3.25, "maximum": 0.1, "multipleOf": 0.1},
    "quarters": {"type": "number", "multipleOf": 0.25, "maximum": 0},
    "listed": {"enum": [-10, -3.2, -0.5, 0, 0.25, 7]},
    "listed in an array": {"const": [-10, 0, 0.5]},
    "no integers": NO_INTEGER,
}
INTEGERS = (0, 1, -1, 5, -5, 7, -7, 10, -10, -12, 70, -70, 77, 123, -1000)
FRACTIONS = (
    0.1, -0.1, 0.2, -0.2, 0.25, -0.25, -0.5, 0.75, -0.75, 3.2, -3.2, -3.25, -3.26, 7.5, -7.5, 7.51, 10.1, -10.1,
)  # fmt: skip
TEXTS = [*map(json.dumps, INTEGERS + FRACTIONS), "-0", "[-10,0,0.5]"]
CROSSING = (
    '":-', '":-1', '":-0', ":-3.", '":0', "-1", "-3", "-3.2", "-0", "-0.", "-10", "-7", "00", "0.", ".2", ".25", ".5",
    "10", "12", "0}", "5}", "25}}", "2}", "[-", "[-10", ",0", "0,", "5]", ",0.5]", "7.5", "{}",
)  # fmt: skip
PIECES = vocabulary_of(CROSSING)
LONG = {raw: token for token in range(PIECES.size) if (raw := PIECES.ordinary_bytes(token))}
ENGINE = LLGuidanceEngine(PIECES)
MINUS_ZERO = re.compile(r"-0(?![.\d])")  # a listed 0 has one spelling
NEGATED = "negated: "  # of the reason why a part of a oneOf is narrowed
PAIRS = list(combinations_with_replacement(KINDS, 2))


def tokens_of(text: str) -> list[int]:
    """The longest token at each place."""
    rest, found = text.encode(), []
    while rest:
        end = next(end for end in range(min(len(rest), 8), 0, -1) if rest[:end] in LONG)
        found.append(LONG[rest[:end]])
        rest = rest[end:]
    return found


def places(one: Any, other: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Schemas in which two kinds may stand in the same place, or one beside any value, each with a text of it."""
    yield {"properties": {"a": {"anyOf": [one, other]}}}, '{"a":%s}'
    yield {"properties": {"a": {"oneOf": [one, other]}}}, '{"a":%s}'
    yield {"anyOf": [{"properties": {"a": one}}, {"properties": {"a": other}, "required": ["a"]}]}, '{"a":%s}'
    yield {"anyOf": [{"properties": {"a": one}}, {"properties": {"c": other}, "required": ["b"]}]}, '{"b":1,"a":%s}'


def arrays(one: Any) -> dict[str, Any]:
    """Arrays of unequal items, which have terminals of their own, beside those of multiples."""
    unequal, multiples = {"items": one, "uniqueItems": True}, {"items": KINDS["fives"]}
    return {"properties": {"a": {"type": "array", "anyOf": [unequal, multiples]}}}


def decimals(text: str) -> Any:
    """A text's value with exact decimals: 0.3 is a multiple of 0.1 then, and not as doubles."""
    return json.loads(text, parse_float=Decimal)


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=map(" and ".join, PAIRS))
def test_two_kinds_of_numbers_in_the_same_place(one: str, other: str) -> None:
    for schema, around in places(KINDS[one], KINDS[other]):
        text = json.dumps(schema)
        judge = jsonschema.Draft202012Validator(decimals(text))
        texts = {written: judge.is_valid(decimals(written)) for written in (around % value for value in TEXTS)}
        if not any(texts.values()):
            continue  # oneOf of a kind and itself
        grammar = ENGINE.compile(text, "allow")
        is_relaxed = bool(grammar.coverage.relaxed)
        is_narrowed = any(use.reason.startswith(NEGATED) for use in grammar.coverage.narrowed)
        assert "oneOf" in text or not (is_relaxed or is_narrowed)
        for written, is_valid in texts.items():
            for tokens in (written.encode(), tokens_of(written)):
                is_written = takes(grammar.matcher(""), tokens)
                is_known = is_relaxed if is_written else is_narrowed or MINUS_ZERO.search(written) is not None
                assert is_written == is_valid or is_known, (schema, written)


@pytest.mark.parametrize("name", ["integers", "from below zero", "negative fractions", "listed", "no integers"])
def test_unequal_items_beside_multiples(name: str) -> None:
    text = json.dumps(arrays(KINDS[name]))
    judge, grammar = jsonschema.Draft202012Validator(decimals(text)), ENGINE.compile(text, "allow")
    for value in TEXTS[:-2]:
        written = f'{{"a":[{value}]}}'
        assert takes(grammar.matcher(""), tokens_of(written)) == judge.is_valid(decimals(written)), written
