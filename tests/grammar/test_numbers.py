"""Numbers: any two kinds in the same place, and bounds that a reader with doubles judges as the grammar does.

LLGuidance's lexer goes on with the longer of two terminals and never returns: a terminal that begins another one's text
and cannot end as a number there, as a sign, would never end.
"""

import json
import random
import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations_with_replacement
from math import inf, isfinite, nextafter
from typing import Any

import jsonschema
import pytest

from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.grammar.plan.digits import MAX_DIGITS, integers, number_range
from constrained_k2.grammar.plan.nodes import Wider
from constrained_k2.schema.shapes import Number
from tests.engines.masked_walks import vocabulary_of
from tests.kit.grammars import compiled, takes
from tests.laws.values import judge_of

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


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=map(" and ".join, PAIRS))
def test_two_kinds_of_numbers_in_the_same_place(one: str, other: str) -> None:
    for schema, around in places(KINDS[one], KINDS[other]):
        judge = judge_of(schema)
        texts = {written: judge.is_valid(json.loads(written)) for written in (around % value for value in TEXTS)}
        if not any(texts.values()):
            continue  # oneOf of a kind and itself
        grammar = ENGINE.compile(json.dumps(schema), "allow")
        is_relaxed = bool(grammar.coverage.relaxed)
        is_narrowed = any(use.reason.startswith(NEGATED) for use in grammar.coverage.narrowed)
        assert "oneOf" in str(schema) or not (is_relaxed or is_narrowed)
        for written, is_valid in texts.items():
            for tokens in (written.encode(), tokens_of(written)):
                is_written = takes(grammar.matcher(""), tokens)
                is_known = is_relaxed if is_written else is_narrowed or MINUS_ZERO.search(written) is not None
                assert is_written == is_valid or is_known, (schema, written)


@pytest.mark.parametrize("name", ["integers", "from below zero", "negative fractions", "listed", "no integers"])
def test_unequal_items_beside_multiples(name: str) -> None:
    unequal = {"items": KINDS[name], "uniqueItems": True}  # these have terminals of their own
    schema = {"properties": {"a": {"type": "array", "anyOf": [unequal, {"items": KINDS["fives"]}]}}}
    judge, grammar = judge_of(schema), ENGINE.compile(json.dumps(schema), "allow")
    for value in TEXTS[:-2]:
        written = f'{{"a":[{value}]}}'
        assert takes(grammar.matcher(""), tokens_of(written)) == judge.is_valid(json.loads(written)), written


FAR = 2**53
ONE_OF = {"oneOf": [{"type": "integer"}, {"type": "number"}]}
CHANCE = random.Random(1)
RANGES = [sorted(CHANCE.sample(range(-1200, 1200), 2)) for _ in range(40)]
BOUNDED: list[dict[str, Any]] = [
    ONE_OF,
    NO_INTEGER,
    NO_INTEGER | {"minimum": 0, "maximum": 1},
    NO_INTEGER | {"exclusiveMinimum": 1000, "maximum": 2**60},
    {"type": "number", "if": {"type": "integer"}, "then": {"minimum": 5}, "else": {"maximum": 9}},
    {"oneOf": [{"type": "number"}, {"type": "integer", "maximum": 5}]},
    {"oneOf": [{"type": "number", "minimum": 5}, {"type": "number", "maximum": 5.5}]},
    *({"type": "number", "exclusiveMinimum": bound} for bound in (0, 5, -5, 0.1, 0.30000000000000004, FAR - 1, FAR, -FAR)),
    *({"type": "number", "exclusiveMaximum": bound} for bound in (0, 5, -5, 0.1, 1, FAR - 1, FAR, -FAR, FAR + 1, 10**23)),
    *({"type": "number", "minimum": bound} for bound in (0.1, FAR + 1, 10**23, 1e23, 10**23 + 1, -(10**23))),
    *({"type": "number", "maximum": bound} for bound in (0.1, FAR + 1, 10**23, 1e23, 10**23 - 1, 1e300, 2**63 - 1)),
    *({"type": "number", keyword: bound} for bound in (1.5, -0.3, 2.25, -10.01, 99.9, 0.999)
      for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    *({"type": "integer", "minimum": low, "maximum": high} for low, high in [*RANGES, (0, 5), (-1, 5), (1, 5)]),
    {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    {"type": "integer", "maximum": 1e23},
    {"type": "integer", "minimum": 1e23, "exclusiveMaximum": 10**24},
    *({"type": "number", "not": {"const": value}} for value in (5, 0, 0.1, -2.5, FAR, FAR + 1, 1e23, 10**23)),
    {"type": "number", "not": {"enum": [1, nextafter(1, 2), nextafter(1, 0)]}},
    {"type": "number", "not": {"enum": [FAR, FAR + 1, FAR + 2, FAR + 4]}, "minimum": FAR, "maximum": FAR + 6},
    {"not": {"minimum": 5}, "type": "number"},
    {"not": {"exclusiveMaximum": FAR + 1}, "type": "number"},
    {"enum": [0, 5, FAR, FAR + 1, 1e23, 10**23, -0.5]},
    {"enum": [10**23, 1e23, 5], "maximum": 1e23},
    {"enum": [10**23, 1e23, 5], "type": "number", "exclusiveMinimum": 1e23},
]  # fmt: skip


def near(schema: Any) -> list[float]:
    """Numbers near those of a schema."""
    found: list[float] = [0, 1, FAR, 10**23]
    if isinstance(schema, dict | list):
        for value in schema.values() if isinstance(schema, dict) else schema:
            found += near(value)
    elif isinstance(schema, int | float) and not isinstance(schema, bool):
        found += [schema, nextafter(schema, inf), nextafter(schema, -inf)]
        found += [int(schema) + step for step in (-2, -1, 0, 1, 2)]
    return found


def texts(value: float, chance: random.Random) -> list[str]:
    """Spellings of numbers at and close beside a number."""
    exact = Fraction(value)
    digits = chance.randint(1, 30)
    beside = exact + Fraction(chance.randint(-9, 9), 10**digits)
    found = [
        json.dumps(value),
        f"{json.dumps(value)}.0" if isinstance(value, int) else f"{value:.20e}",
        "-0",
        "-0.0",
        "-12",
    ]
    for number in (exact, beside):
        whole, rest = divmod(abs(number), 1)
        sign = "-" if number < 0 else ""
        found.append(f"{sign}{whole}.{int(rest * 10**40):040d}".rstrip("0").removesuffix("."))
        found.append(f"{sign}{whole}.{int(rest * 10**digits):0{digits}d}")
        if number:
            found.append(f"{float(number):.{chance.randint(0, 20)}e}")
    return found


@pytest.mark.parametrize("schema", BOUNDED, ids=json.dumps)
def test_what_is_written_is_valid_as_doubles_and_every_double_is_unless_coverage_says_why_not(schema: Any) -> None:
    grammar = compiled({"properties": {"a": schema}})
    assert not grammar.coverage.relaxed, grammar.coverage.relaxed
    judge, chance = jsonschema.Draft202012Validator(schema), random.Random(json.dumps(schema))
    is_narrowed = any("15 digits" in use.reason for use in grammar.coverage.narrowed)
    taken = 0

    def is_taken(text: str) -> bool:
        return takes(grammar.matcher(""), f'{{"a":{text}}}'.encode())

    for value in dict.fromkeys(near(schema)):
        for text in texts(value, chance):
            found = is_taken(text)
            assert not found or judge.is_valid(json.loads(text)), text
            taken += found
        text = json.dumps(value)
        if not judge.is_valid(value) or not isfinite(value):
            continue
        is_long = sum(map(str.isdigit, text.partition("e")[0])) > 15
        if isinstance(value, float) and schema.get("type") == "integer":
            continue  # 1.0 is not written
        if ("enum" in schema and ".0" in text) or (value and not 1e-40 < abs(value) < 1e299):
            continue  # the one spelling of a listed number, and the limits of digits and exponents
        assert is_taken(text) or (is_narrowed and is_long), text
    assert taken


def test_the_number_of_digits_is_bounded() -> None:
    assert re.fullmatch(integers(None, None), "9" * MAX_DIGITS)
    assert not re.fullmatch(integers(None, None), "9" * (MAX_DIGITS + 1))
    assert number_range(Number(low=Fraction(-(10**310)))) == ""  # the bound is beyond all numbers that can be written
    wider = number_range(Number(low=Fraction(10**50)))
    assert isinstance(wider, Wider) and wider.shape == Number() and "digits" in wider.reason


@pytest.mark.parametrize("bound", [10**39, 10**45, 10**300, 2 * 10**299])
def test_exponents_of_large_bounds(bound: int) -> None:
    grammar = compiled({"properties": {"a": {"type": "number", "minimum": -bound, "maximum": 0}}})
    power = len(str(bound)) - 1
    for text, is_taken in ((f"-9e{power}", False), (f"-9e{power - 1}", True), ("-12", True)):
        assert takes(grammar.matcher(""), f'{{"a":{text}}}'.encode()) == is_taken, text


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0, 5, True), (-1, None, True), (None, 0, True), (None, None, True), (1, 5, False)]
)
def test_integers_may_be_negative_zero_where_zero_is_allowed(low: int | None, high: int | None, expected: bool) -> None:
    bounds = {key: value for key, value in (("minimum", low), ("maximum", high)) if value is not None}
    grammar = compiled({"properties": {"a": {"type": "integer"} | bounds}})
    assert takes(grammar.matcher(""), b'{"a":-0}') == expected
    assert not takes(grammar.matcher(""), b'{"a":1e0}')
