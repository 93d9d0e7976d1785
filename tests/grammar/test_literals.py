"""Texts with a meaning in Lark, such as ``//``, as keys, values and patterns of schemas, in both encodings."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from constrained_k2.engines.protocol import ArgumentEncoding
from tests.grammar.test_arguments import BYTES, ENGINE
from tests.kit.grammars import takes
from tests.kit.xtml import encode, pieces

TEXTS = [
    "", "/", "//", "# a", '"', "'", "\\", "\\n", "\n", "a\r\nb", "|", "a|b", "/i", "x/imsux", "~&", "%json {}", "^$", "([{",
    "{0}", "*+?.", "->", "<|open|>", "\x00", "\x7f", "\u2028é", "  ",
]  # fmt: skip
Case = Callable[[str], tuple[dict[str, Any], Callable[[str], bool]]]
STRINGS: dict[str, Case] = {
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
KEYS: dict[str, Case] = {
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
@pytest.mark.parametrize(("table", "kind"), [*((STRINGS, kind) for kind in STRINGS), *((KEYS, kind) for kind in KEYS)],
                         ids=[*STRINGS, *KEYS])  # fmt: skip
def test_any_text_as_a_string_or_a_key(table: dict[str, Case], kind: str, encoding: ArgumentEncoding) -> None:
    for text in TEXTS:
        schema, is_valid = table[kind](text)
        if table is STRINGS:
            member = {"properties": {"a": {"type": "string", **schema}}, "required": ["a"]}
            schema = member | {"additionalProperties": False}
        grammar = ENGINE.compile(json.dumps({"type": "object", **schema}), "allow", encoding)
        assert not grammar.coverage.relaxed and not grammar.coverage.refused, grammar.coverage
        for sample in [*TEXTS[::3], text, f"{text}{text}", f"{text} ", "z", "7"]:
            value: dict[str, Any] = {"a": sample} if table is STRINGS else {sample: 1}
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
