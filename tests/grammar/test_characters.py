"""Every kind of string takes the same characters: all that JSON allows as themselves, and the escapes of the others."""

import json
from typing import Any

import pytest

from tests.kit.compilers import byte_compiler
from tests.kit.grammars import compiled, takes

EDGES = (0x7F, 0x80, 0x85, 0x9F, 0xA0, 0xAD, 0x7FF, 0x800, 0x2028, 0x2029, 0xD7FF, 0xE000, 0xFDD0, 0xFEFF, 0xFFFD,
         0xFFFE, 0xFFFF, 0x10000, 0x1F600, 0xEFFFF, 0x10F000, 0x10F001, 0x10FFFE, 0x10FFFF)  # fmt: skip
TEXT = "".join(map(chr, (*range(0x7F), *EDGES)))
STRINGS: dict[str, Any] = {
    "any": {"type": "string"},
    "minLength": {"type": "string", "minLength": 1},
    "maxLength": {"type": "string", "maxLength": 1},
    "pattern": {"type": "string", "pattern": r"^[\s\S]$"},
    "pattern of all": {"type": "string", "pattern": ""},
    "negated class": {"type": "string", "pattern": "^[^é]$"},
    "absent pattern": {"type": "string", "not": {"pattern": "^é"}},
    "pattern, maxLength": {"type": "string", "pattern": r"^[\s\S]", "maxLength": 2},
    "excluded": {"type": "string", "not": {"const": "é"}},
    "excluded, maxLength": {"type": "string", "not": {"const": "é"}, "maxLength": 9},
    "listed": {"enum": list(TEXT)},
    "one": {"const": TEXT},
    "unique": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    "unique, sized": {"type": "array", "items": {"type": "string", "maxLength": 1}, "uniqueItems": True},
}
KEYS: dict[str, Any] = {
    "open": {"type": "object"},
    "beside a declared one": {"properties": {"éé": {}}, "additionalProperties": {"type": "integer"}},
    "patternProperties": {"patternProperties": {r"^[\s\S]$": {"type": "integer"}}, "additionalProperties": False},
    "propertyNames with a pattern": {"propertyNames": {"pattern": r"^[\s\S]$"}},
    "propertyNames with a length": {"propertyNames": {"maxLength": 1}},
    "propertyNames, listed": {"propertyNames": {"enum": list(TEXT)}},
    "declared": {"properties": {character: {} for character in TEXT[:64]}},
    "required": {"required": list(TEXT[-64:])},
}


@pytest.fixture(scope="module", params=["llguidance", "xgrammar"])
def engine(request: pytest.FixtureRequest) -> Any:
    return byte_compiler().engine(request.param)


def refused(engine: Any, schema: Any, texts: dict[str, str]) -> list[str]:
    """The characters, by name, whose text a grammar does not take."""
    grammar = engine.compile(json.dumps({"type": "object", **schema}), "allow")
    return [ascii(name) for name, text in texts.items() if not takes(grammar.matcher(""), text.encode())]


def spelled(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@pytest.mark.parametrize("kind", STRINGS)
def test_characters_of_strings(engine: Any, kind: str) -> None:
    around = '{"a":[%s]}' if "uniqueItems" in STRINGS[kind] else '{"a":%s}'
    texts = {text: around % spelled(text) for text in ([TEXT] if kind == "one" else TEXT)}
    assert not refused(engine, {"properties": {"a": STRINGS[kind]}}, texts)


@pytest.mark.parametrize("kind", KEYS)
def test_characters_of_keys(engine: Any, kind: str) -> None:
    schema = KEYS[kind]
    if "required" in schema:
        whole = "{" + ",".join(f"{spelled(name)}:1" for name in schema["required"]) + "}"
        if engine.name == "xgrammar":
            whole = whole.replace("\x7f", "\\u007f")  # as xgrammar writes this key, and no other character
        assert not refused(engine, schema, {"all": whole})
        return
    names = schema["properties"] if kind == "declared" else TEXT
    if engine.name == "xgrammar" and kind == "beside a declared one":
        names = [name for name in names if not name.startswith("é")]
    assert not refused(engine, schema, {name: f"{{{spelled(name)}:1}}" for name in names})


@pytest.mark.parametrize("sizes", [{"minLength": 2}, {"maxLength": 2}, {"minLength": 2, "maxLength": 2}], ids=str)
def test_lengths_count_characters_in_any_spelling(sizes: dict[str, int]) -> None:
    grammar = compiled({"properties": {"a": {"type": "string", **sizes}}})

    def is_taken(string: str) -> bool:
        return takes(grammar.matcher(""), f'{{"a":{string}}}'.encode())

    for two in ('"\\ud83d\\ude00\\/"', '"\\u0041\\u007f"', '"😀\x7f"', '"\\n\\u2028"'):
        assert len(json.loads(two)) == 2
        assert is_taken(two)
        assert is_taken(f'"x{two[1:]}') == ("maxLength" not in sizes)
        assert is_taken(json.dumps(json.loads(two)[0])) == ("minLength" not in sizes)
    assert not any(map(is_taken, ('"\\ud83d"', '"\\ude00\\ud83d"', '"\t"', '"\\x"')))
