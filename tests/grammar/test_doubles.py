"""Numbers are written so that a reader with doubles, as Python's json and jsonschema, judges as the grammar does."""

import json
import random
from fractions import Fraction
from math import inf, isfinite, nextafter
from typing import Any

import jsonschema
import pytest

from constrained_k2.schema.doubles import above, below, double_from, number_of
from tests.kit.grammars import compiled, takes

FAR = 2**53
ONE_OF = {"oneOf": [{"type": "integer"}, {"type": "number"}]}
NO_INTEGER = {"type": "number", "not": {"type": "integer"}}
SCHEMAS: list[dict[str, Any]] = [
    ONE_OF,
    NO_INTEGER,
    NO_INTEGER | {"minimum": 0, "maximum": 1},
    NO_INTEGER | {"exclusiveMinimum": 1000, "maximum": 2**60},
    {"type": "number", "if": {"type": "integer"}, "then": {"minimum": 5}, "else": {"maximum": 9}},
    {"oneOf": [{"type": "number"}, {"type": "integer", "maximum": 5}]},
    {"oneOf": [{"type": "number", "minimum": 5}, {"type": "number", "maximum": 5.5}]},
    *({"type": "number", "exclusiveMinimum": bound} for bound in (0, 5, -5, 0.1, 0.30000000000000004, FAR - 1, FAR)),
    *({"type": "number", "exclusiveMaximum": bound} for bound in (0, 5, -5, 0.1, 1, FAR - 1, FAR, FAR + 1, 10**23)),
    *({"type": "number", "minimum": bound} for bound in (0.1, FAR + 1, 10**23, 1e23, 10**23 + 1, -(10**23))),
    *({"type": "number", "maximum": bound} for bound in (0.1, FAR + 1, 10**23, 1e23, 10**23 - 1, 1e300, 2**63 - 1)),
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
]


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
    found = [json.dumps(value), f"{json.dumps(value)}.0" if isinstance(value, int) else f"{value:.20e}"]
    for number in (exact, beside):
        whole, rest = divmod(abs(number), 1)
        sign = "-" if number < 0 else ""
        found.append(f"{sign}{whole}.{int(rest * 10**40):040d}".rstrip("0").removesuffix("."))
        found.append(f"{sign}{whole}.{int(rest * 10**digits):0{digits}d}")
        if number:
            found.append(f"{float(number):.{chance.randint(0, 20)}e}")
    return found


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
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


def test_bounds_are_doubles() -> None:
    assert above(Fraction(5)).low == Fraction("5.000000000000001")
    assert below(Fraction(1)).high == Fraction("0.9999999999999999")
    assert above(Fraction(0)).low_open and above(Fraction(FAR)).low_open and below(Fraction(-FAR)).high_open
    assert below(Fraction(FAR)).high == FAR - 1 and above(Fraction(-FAR)).low == 1 - FAR
    assert double_from(Fraction(FAR + 1)) == FAR + 2
    assert double_from(Fraction(FAR), is_open=True) == FAR + 2
    assert double_from(Fraction(10**23 - 1)) == Fraction("1.0000000000000001e23")  # 1e23 is read as a smaller one
    assert number_of(0.1) == Fraction(1, 10) and number_of(1e23) != 10**23
