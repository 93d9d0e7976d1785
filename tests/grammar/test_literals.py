"""Texts with a meaning in Lark, such as ``//``, as keys, values and patterns of schemas, in both encodings."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from constrained_k2.engines.protocol import ArgumentEncoding
from tests.grammar.test_arguments import BYTES, ENGINE
from tests.kit.xtml import encode, pieces

TEXTS = [
    "", "/", "//", "# a", '"', "'", "\\", "\\n", "\n", "a\r\nb", "|", "a|b", "/i", "x/imsux", "~&", "%json {}", "^$", "([{",
    "{0}", "*+?.", "->", "<|open|>", "\x00", "\x7f", "\u2028é", "  ",
]  # fmt: skip
STRINGS: dict[str, Callable[[str], tuple[dict[str, Any], Callable[[str], bool]]]] = {
    "const": lambda text: ({"const": text}, lambda value: value == text),
    "enum": lambda text: ({"enum": [text, "z"]}, lambda value: value in {text, "z"}),
    "long enum": lambda text: ({"enum": [text, *map(str, range(80))]}, lambda value: value == text or value.isdecimal()),
    "not const": lambda text: ({"not": {"const": text}}, lambda value: value != text),
    "not enum": lambda text: ({"not": {"enum": [text, "z"]}}, lambda value: value not in {text, "z"}),
    "pattern": lambda text: ({"pattern": f"^{re.escape(text)}$"}, lambda value: value == text),
    "open pattern": lambda text: ({"pattern": re.escape(text)}, lambda value: text in value),
    "pattern alternatives": lambda text: (
        {"pattern": f"^(?:|{re.escape(text)}|z)$"},
        lambda value: value in {"", text, "z"},
    ),
    "pattern ways": lambda text: ({"pattern": f"^{re.escape(text)}$|^$|^z"}, lambda value: value in {"", text} or value[0] == "z"),
    "not pattern": lambda text: ({"not": {"pattern": f"^{re.escape(text)}$"}}, lambda value: value != text),
    "pattern and not const": lambda text: (
        {"pattern": "^[^z]*$", "not": {"const": text}},
        lambda value: "z" not in value and value != text,
    ),
    "look-ahead": lambda text: ({"pattern": f"^(?!{re.escape(text)}$)"}, lambda value: value != text),
    "length and not const": lambda text: (
        {"maxLength": 4, "not": {"const": text}},
        lambda value: len(value) < 5 and value != text,
    ),
}  # fmt: skip
KEYS: dict[str, Callable[[str], tuple[dict[str, Any], Callable[[str], bool]]]] = {
    "declared": lambda text: ({"properties": {text: {}}, "additionalProperties": False}, lambda key: key == text),
    "excluded": lambda text: ({"properties": {text: False}}, lambda key: key != text),
    "not required": lambda text: ({"not": {"required": [text]}}, lambda key: key != text),
    "required": lambda text: ({"required": [text]}, lambda key: key == text),
    "key pattern": lambda text: (
        {"patternProperties": {f"^{re.escape(text)}$": {}}, "additionalProperties": False},
        lambda key: key == text,
    ),
    "excluded key pattern": lambda text: ({"patternProperties": {f"^{re.escape(text)}$": False}}, lambda key: key != text),
    "names": lambda text: ({"propertyNames": {"enum": [text, "z"]}}, lambda key: key in {text, "z"}),
    "not names": lambda text: ({"propertyNames": {"not": {"const": text}}}, lambda key: key != text),
}  # fmt: skip


def accepts(schema: dict[str, Any], encoding: ArgumentEncoding, values: list[dict[str, Any]]) -> list[bool]:
    grammar = ENGINE.compile(json.dumps(schema), "allow", encoding)
    assert not grammar.coverage.relaxed and not grammar.coverage.refused, grammar.coverage

    def takes(value: dict[str, Any]) -> bool:
        matcher = grammar.matcher("schema")
        if encoding == "json":
            tokens = BYTES.encode(json.dumps(value, ensure_ascii=False))
        else:
            tokens = encode(BYTES, pieces(value))
        return all(map(matcher.accept, tokens)) and matcher.is_complete()

    return list(map(takes, values))


@pytest.mark.parametrize("encoding", ["json", "xtml"])
@pytest.mark.parametrize("where", STRINGS)
def test_strings_of_any_text(where: str, encoding: ArgumentEncoding) -> None:
    for text in TEXTS:
        schema, is_valid = STRINGS[where](text)
        closed = {"type": "object", "properties": {"a": {"type": "string", **schema}}, "required": ["a"]}
        samples = [*TEXTS[::3], text, f"{text}{text}", f"{text} ", "z", "7"]
        taken = accepts(closed | {"additionalProperties": False}, encoding, [{"a": sample} for sample in samples])
        assert taken == list(map(is_valid, samples)), (text, schema)


@pytest.mark.parametrize("encoding", ["json", "xtml"])
@pytest.mark.parametrize("where", KEYS)
def test_keys_of_any_text(where: str, encoding: ArgumentEncoding) -> None:
    for text in TEXTS:
        schema, is_valid = KEYS[where](text)
        samples = [*TEXTS[::3], text, f"{text}{text}", f"{text} ", "z", "7"]
        taken = accepts({"type": "object", **schema}, encoding, [{sample: 1} for sample in samples])
        assert taken == list(map(is_valid, samples)), (text, schema)


@pytest.mark.parametrize("beside", [{}, {"b": {"multipleOf": 2}}], ids=["", "signs apart"])
@pytest.mark.parametrize("given", [0, -0.0, 30, 30.0, -30, 1e15, 2**53, 10**30])
def test_a_listed_integer_has_one_spelling(given: float, beside: dict[str, Any]) -> None:
    number = int(given)
    for listed in (
        {"const": given},
        {"enum": [given, "x"]},
        {"oneOf": [{"const": given}]},
        {"const": [given, {"k": given}]},
    ):
        grammar = ENGINE.compile(json.dumps({"type": "object", "properties": {"a": listed, **beside}}), "allow", "json")
        narrowed = [use.keyword for use in grammar.coverage.narrowed if use.pointer.startswith("#/properties/a")]
        assert narrowed == [next(iter(listed)) if "oneOf" not in listed else "const"]
        is_nested = isinstance(listed.get("const"), list)
        for text in (str(number), f"{number}.0", f"{number}.00", f"{number}e0", f"-{abs(number)}"):
            matcher = grammar.matcher("schema")
            whole = f'{{"a": [{text}, {{"k": {text}}}]}}' if is_nested else f'{{"a": {text}}}'
            is_taken = all(map(matcher.accept, BYTES.encode(whole))) and matcher.is_complete()
            assert is_taken == (text == str(number)), (listed, text)
