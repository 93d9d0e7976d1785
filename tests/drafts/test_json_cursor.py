"""The JSON cursor and the guesses from it, at every prefix of some texts."""

import json
from typing import Any

import pytest

from constrained_k2.turn.cursors.json_cursor import MAX_TOKEN, JsonCursor, JsonPart
from constrained_k2.turn.cursors.schema_view import SchemaView
from constrained_k2.turn.drafts.guesses import likely_continuation

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "detail": {"type": "object", "properties": {"wind": {"type": "boolean"}}, "required": ["wind"]},
        "places": {"type": "array", "items": {"$ref": "#/$defs/place"}},
    },
    "required": ["city", "days"],
    "$defs": {"place": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
}


def at(text: str, schema: Any = WEATHER) -> JsonCursor:
    cursor = JsonCursor(schema)
    cursor.feed(text)
    return cursor


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("", '{"city": "'),
        ("{", '"city": "'),
        ('{"', 'city": "'),
        ('{"days": 3', ""),  # more digits, or the end: not known
        ('{"days": 3, ', '"city": "'),
        ('{"city": "Oslo"', ', "days": '),
        ('{"city": "Oslo",', ' "days": '),
        ('{"city":"Oslo",', '"days":'),
        ('{"city":"Oslo"', ',"days":'),
        ('{"city": "Oslo", "days": 3, "unit": "c', 'elsius"}'),
        ('{"city": "Oslo", "days": 3, "unit": "', ""),
        ('{"city": "Oslo", "days": 3, "u', 'nit": "'),
        ('{"city": "Oslo", "days": 3, "de', 'tail": {"wind":'),  # a blank and a word are one token
        ('{"city": "Oslo", "days": 3, "detail": {"wind": t', "rue}}"),
        ('{"city": "Oslo", "days": 3, "places": [', '{"name": "'),
        ('{"city": "Os\\"lo", "days": 3, "places": [{"name": "a"', "}]}"),
        ('{"city": "Oslo", "days": 3}', ""),
    ],
)
def test_what_is_likely(text: str, guess: str) -> None:
    cursor = at(text)
    before = [getattr(cursor, name) for name in ("expect", "token", "is_done")]
    assert likely_continuation(cursor, 100) == guess
    assert [getattr(cursor, name) for name in ("expect", "token", "is_done")] == before


def test_the_end_is_known_at_every_prefix() -> None:
    text = json.dumps({"city": 'a}"]\\', "days": -3, "detail": {"wind": True}, "places": [{"name": "x"}, {"name": ""}]})
    for end in range(len(text)):
        assert not at(text[:end]).is_done
    assert at(text).is_done and at(text).expect is JsonPart.AFTER


@pytest.mark.parametrize(
    "schema",
    [
        None, 5, [], {}, True, {"$ref": "#"}, {"$ref": "#/nowhere"}, {"$ref": 5}, {"allOf": [{"$ref": "#"}] * 40},
        {"properties": []}, {"required": "x"}, {"type": 5}, {"enum": 5}, {"anyOf": 5}, {"type": ["string", "null"]},
        {"items": {"$ref": "#"}}, {"$ref": "#/$defs/a/0", "$defs": {"a": [{"$ref": "#/$defs/a/0"}]}},
    ],
)  # fmt: skip
def test_any_schema_is_looked_at(schema: Any) -> None:
    SchemaView.of(schema, schema)
    for text in ("", "{", '{"a": ', '{"a": [', '[1, "x', "true"):
        likely_continuation(at(text, schema), 50)


def test_long_strings_are_not_remembered() -> None:
    cursor = at('{"city": "' + "x" * 100_000)
    assert len(cursor.token) <= MAX_TOKEN


@pytest.mark.parametrize("key", ["\u00b2", "9" * 5000, "-1", "01x"])
def test_a_reference_that_is_no_index_gives_no_view(key: str) -> None:
    document = {"anyOf": [{"type": "string"}], "$ref": f"#/anyOf/{key}"}
    assert SchemaView.of(document, document).kind in {"", "string"}  # schemas that are not enforced are not checked
