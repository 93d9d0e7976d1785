"""Strings and keys of any characters, and texts with a meaning in Lark, such as ``//``, in both encodings."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from constrained_k2.engines.protocol import ArgumentEncoding
from tests.grammar.test_arguments import BYTES, ENGINE
from tests.kit.compilers import byte_compiler
from tests.kit.grammars import compiled, takes
from tests.kit.xtml import encode, pieces

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


TEXTS = [
    "", "/", "//", "# a", '"', "'", "\\", "\\n", "\n", "a\r\nb", "|", "a|b", "/i", "x/imsux", "~&", "%json {}", "^$", "([{",
    "{0}", "*+?.", "->", "<|open|>", "\x00", "\x7f", "\u2028é", "  ",
]  # fmt: skip
Case = Callable[[str], tuple[dict[str, Any], Callable[[str], bool]]]
LITERALS: dict[str, Case] = {
    "const": lambda text: ({"const": text}, lambda value: value == text),
    "enum": lambda text: ({"enum": [text, "z"]}, lambda value: value in {text, "z"}),
    "long enum": lambda text: ({"enum": [text, *map(str, range(80))]}, lambda value: value == text or value.isdecimal()),
    "not const": lambda text: ({"not": {"const": text}}, lambda value: value != text),
    "not enum": lambda text: ({"not": {"enum": [text, "z"]}}, lambda value: value not in {text, "z"}),
    "pattern": lambda text: ({"pattern": f"^{re.escape(text)}$"}, lambda value: value == text),
    "open pattern": lambda text: ({"pattern": re.escape(text)}, lambda value: text in value),
    "pattern alternatives": lambda text: ({"pattern": f"^(?:|{re.escape(text)}|z)$"}, lambda value: value in {"", text, "z"}),
    "pattern ways": lambda text: ({"pattern": f"^{re.escape(text)}$|^$|^z"}, lambda value: value in {"", text} or value[0] == "z"),
    "not pattern": lambda text: ({"not": {"pattern": f"^{re.escape(text)}$"}}, lambda value: value != text),
    "pattern and not const": lambda text: ({"pattern": "^[^z]*$", "not": {"const": text}}, lambda value: "z" not in value and value != text),
    "look-ahead": lambda text: ({"pattern": f"^(?!{re.escape(text)}$)"}, lambda value: value != text),
    "length and not const": lambda text: ({"maxLength": 4, "not": {"const": text}}, lambda value: len(value) < 5 and value != text),
}  # fmt: skip
LITERAL_KEYS: dict[str, Case] = {
    "declared": lambda text: ({"properties": {text: {}}, "additionalProperties": False}, lambda key: key == text),
    "excluded": lambda text: ({"properties": {text: False}}, lambda key: key != text),
    "not required": lambda text: ({"not": {"required": [text]}}, lambda key: key != text),
    "required": lambda text: ({"required": [text]}, lambda key: key == text),
    "key pattern": lambda text: ({"patternProperties": {f"^{re.escape(text)}$": {}}, "additionalProperties": False}, lambda key: key == text),
    "excluded key pattern": lambda text: ({"patternProperties": {f"^{re.escape(text)}$": False}}, lambda key: key != text),
    "names": lambda text: ({"propertyNames": {"enum": [text, "z"]}}, lambda key: key in {text, "z"}),
    "not names": lambda text: ({"propertyNames": {"not": {"const": text}}}, lambda key: key != text),
}  # fmt: skip


@pytest.mark.parametrize("encoding", ["json", "xtml"])
@pytest.mark.parametrize(("table", "kind"), [*((LITERALS, kind) for kind in LITERALS), *((LITERAL_KEYS, kind) for kind in LITERAL_KEYS)],
                         ids=[*LITERALS, *LITERAL_KEYS])  # fmt: skip
def test_any_text_as_a_string_or_a_key(table: dict[str, Case], kind: str, encoding: ArgumentEncoding) -> None:
    for text in TEXTS:
        schema, is_valid = table[kind](text)
        if table is LITERALS:
            member = {"properties": {"a": {"type": "string", **schema}}, "required": ["a"]}
            schema = member | {"additionalProperties": False}
        grammar = ENGINE.compile(json.dumps({"type": "object", **schema}), "allow", encoding)
        assert not grammar.coverage.relaxed and not grammar.coverage.refused, grammar.coverage
        for sample in [*TEXTS[::3], text, f"{text}{text}", f"{text} ", "z", "7"]:
            value: dict[str, Any] = {"a": sample} if table is LITERALS else {sample: 1}
            in_json = BYTES.encode(json.dumps(value, ensure_ascii=False))
            ids = in_json if encoding == "json" else encode(BYTES, pieces(value))
            assert takes(grammar.matcher("schema"), ids) == is_valid(sample), (text, schema, sample)


@pytest.mark.parametrize("beside", [{}, {"b": {"multipleOf": 2}}], ids=["", "signs apart"])
@pytest.mark.parametrize("given", [0, -0.0, 30, 30.0, -30, 1e15, 2**53, 10**30])
def test_a_listed_integer_has_one_spelling(given: float, beside: dict[str, Any]) -> None:
    number = int(given)
    one = {"const": given}
    for listed in (one, {"enum": [given, "x"]}, {"oneOf": [one]}, {"const": [given, {"k": given}]}):
        grammar = ENGINE.compile(json.dumps({"type": "object", "properties": {"a": listed, **beside}}), "allow", "json")
        narrowed = [use.keyword for use in grammar.coverage.narrowed if use.pointer.startswith("#/properties/a")]
        assert narrowed == [next(iter(listed)) if "oneOf" not in listed else "const"]
        is_nested = isinstance(listed.get("const"), list)
        for text in (str(number), f"{number}.0", f"{number}.00", f"{number}e0", f"-{abs(number)}"):
            whole = f'{{"a": [{text}, {{"k": {text}}}]}}' if is_nested else f'{{"a": {text}}}'
            assert takes(grammar.matcher("schema"), BYTES.encode(whole)) == (text == str(number)), (listed, text)
