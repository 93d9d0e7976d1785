"""The phase, tool, pointer and keyword of every forbidden token, in each format."""

from collections.abc import Sequence
from typing import Any

import pytest

from constrained_k2 import KIMI_K2
from constrained_k2.explain.view import Site
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k3 import KIMI_K3
from tests.explain.turns import CALL, END, K3_CALL, SECTION, TOOLS, UNITS, obj, place_of, tool

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


SCHEMAS: dict[str, tuple[dict[str, Any], str, str, str, tuple[str, ...]]] = {
    "enum": (obj(units=UNITS), '{"units":"', "CELSIUS", "/units", ("enum",)),
    "enum, a part in": (obj(units=UNITS), '{"units":"cel', "l", "/units", ("enum",)),
    "enum, its end": (obj(units=UNITS), '{"units":"cel', '"}', "/units", ("enum",)),
    "enum, several pieces": (obj(units=UNITS), '{"units', '":"K', "/units", ("enum",)),
    "enum of a type": (obj(u=UNITS | {"type": "string"}), '{"u":', '"k', "/u", ("enum",)),
    "const": (obj(a={"const": "yes"}), '{"a":', '"no', "/a", ("const",)),
    "type": (obj(a={"type": "integer"}), '{"a":', '"5', "/a", ("type",)),
    "type of the root": (obj(a={}), "", "[", "", ("type",)),
    "type and enum": (obj(u=UNITS | {"type": "string"}), '{"u":', "5", "/u", ("enum", "type")),
    "a fraction": (obj(a={"type": "integer"}), '{"a":1', ".", "/a", ("type",)),
    "required": (obj(["a", "b"], a={"type": "integer"}, b={}), '{"a":1', "}", "", ("required",)),
    "required, several pieces": (obj(["a", "b"], a={"type": "string"}, b={}), '{"a":"1', '"}', "", ("required",)),
    "required at once": (obj(["a"], a={}), "{", "}", "", ("required",)),
    "required below": (obj(p=POINT), '{"p":{', "}", "/p", ("required",)),
    "pattern": (obj(a={"type": "string", "pattern": "^[a-z]+$"}), '{"a":"x', "Y", "/a", ("pattern",)),
    "format": (obj(a={"type": "string", "format": "date"}), '{"a":"2026-', "13", "/a", ("format",)),
    "minLength": (obj(a={"type": "string", "minLength": 3}), '{"a":"xy', '"', "/a", ("minLength",)),
    "minLength, several": (obj(a={"type": "string", "minLength": 3}), '{"a":"', 'y"}', "/a", ("minLength",)),
    "maxLength": (obj(a={"type": "string", "maxLength": 3}), '{"a":"xyz', "q", "/a", ("maxLength",)),
    "minimum": (obj(a={"type": "integer", "minimum": 10}), '{"a":', "-", "/a", ("minimum",)),
    "minimum, at the end": (obj(a={"type": "integer", "minimum": 10}), '{"a":5', "}", "/a", ("minimum",)),
    "maximum": (obj(a={"type": "integer", "maximum": 14}), '{"a":1', "5", "/a", ("maximum",)),
    "exclusiveMaximum": (obj(a={"type": "integer", "exclusiveMaximum": 10}), '{"a":1', "0", "/a", ("exclusiveMaximum",)),
    "multipleOf": (obj(a={"type": "integer", "multipleOf": 5}), '{"a":12', ",", "/a", ("multipleOf",)),
    "items": (obj(a={"type": "array", "items": {"type": "integer"}}), '{"a":[1,', '"x', "/a/1", ("type",)),
    "prefixItems": (obj(a={"type": "array", "prefixItems": [{}, UNITS]}), '{"a":[1,', "2", "/a/1", ("enum",)),
    "minItems": (obj(a={"type": "array", "minItems": 2}), '{"a":[1', "]", "/a", ("minItems",)),
    "minItems, empty": (obj(a={"type": "array", "minItems": 1}), '{"a":[', "]", "/a", ("minItems",)),
    "maxItems": (obj(a={"type": "array", "maxItems": 1}), '{"a":[true', ",", "/a", ("maxItems",)),
    "uniqueItems": (
        obj(a={"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
        '{"a":["x","x', '"', "/a/1", ("uniqueItems",),
    ),
    "nested arrays": (
        obj(a={"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
        '{"a":[[1],[2,', '"', "/a/1/1", ("type",),
    ),
    "objects in arrays": (obj(a={"type": "array", "items": POINT}), '{"a":[{"x":1},{', "}", "/a/1", ("required",)),
    "unknown key": (obj(a={}, b={}), '{"a":1,"', "zz", "", ("unknown key",)),
    "unknown key below": (obj(p=obj(x={}, z={})), '{"p":{"x":1,', '"y', "/p", ("unknown key",)),
    "additionalProperties": (obj(a={}) | {"additionalProperties": False}, '{"', "zz", "", ("additionalProperties",)),
    "repeated key": (obj(a={}, b={}), '{"a":1,"', 'a"', "", ("repeated key",)),
    "anyOf": (obj(a={"anyOf": [{"const": "x"}, {"type": "null"}]}), '{"a":"', "y", "/a", ("const",)),
    "anyOf of objects": (
        obj(a={"anyOf": [obj(["k"], k={"const": 1}, v=UNITS), obj(["k"], k={"const": 2}, v={"type": "integer"})]}),
        '{"a":{"k":1,"v":', "7", "/a/v", ("enum",),
    ),
    "oneOf": (
        obj(a={"oneOf": [{"type": "string", "maxLength": 2}, {"type": "integer"}]}), '{"a":', "true", "/a", ("type",),
    ),
    "$ref": (obj(a={"$ref": "#/$defs/u"}) | {"$defs": {"u": UNITS}}, '{"a":"', "K", "/a", ("enum",)),
    "$ref to the root": (
        obj(n={"type": "integer"}, child={"$ref": "#"}), '{"child":{"child":{"n":', '"', "/child/child/n", ("type",),
    ),
    "allOf": (obj(a={"allOf": [{"type": "string"}, {"minLength": 2}]}), '{"a":"x', '"', "/a", ("minLength",)),
    "dependentRequired": (
        obj(a={}, b={}) | {"dependentRequired": {"a": ["b"]}}, '{"a":1', "}", "", ("dependentRequired",)
    ),
    "if": (
        obj(a={"enum": ["x", "y"]}, b={}) | {"if": {"properties": {"a": {"const": "x"}}}, "then": {"required": ["b"]}},
        '{"a":"x"', "}", "", ("required",),
    ),
    "not": (obj(a={"type": "string", "not": {"const": "no"}}), '{"a":"no', '"', "/a", ("not",)),
    "false": (obj(a={}) | {"properties": {"a": {}, "b": False}}, '{"', 'b":', "", ("properties",)),
    "patternProperties": (
        {"type": "object", "patternProperties": {"^x": {"type": "integer"}}}, '{"x1":', '"', "/x1", ("type",)
    ),
    "escapes in a key": ({"type": "object", "properties": {'a/b~"': {"type": "null"}}}, '{"a/b~\\"":', "1", '/a~1b~0"', ("type",)),
    "syntax": (obj(a={}), "{", "a", "", ("syntax",)),
    "a comma at the end": (obj(a={}, b={}), '{"a":1,', "}", "", ("syntax",)),
    "an apostrophe": (obj(a={"type": "string"}), '{"a":', "'x", "/a", ("syntax",)),
    "a control character": (obj(a={"type": "string"}), '{"a":"x', "\n", "/a", ("syntax",)),
    "blanks": (obj(a={}), '{"a":' + " " * 60, " " * 200, "/a", ("blanks",)),
}  # fmt: skip


def block(key: str, kind: str, value: str) -> str:
    return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'


def begun(key: str, kind: str, value: str = "") -> str:
    return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}'


K3_SCHEMAS: dict[str, tuple[dict[str, Any], str, str, str, tuple[str, ...]]] = {
    "enum": (obj(u=UNITS), begun("u", "string"), "CELSIUS", "/u", ("enum",)),
    "enum, its end": (obj(u=UNITS), begun("u", "string", "cel"), "<|close|>", "/u", ("enum",)),
    "type": (obj(a={"type": "integer"}), '<|open|>argument key="a" type="', "string", "/a", ("type",)),
    "required": (obj(["a", "b"], a={"type": "integer"}, b={}), block("a", "number", "1"), "<|close|>", "", ("required",)),
    "required below": (obj(p=POINT), begun("p", "object", "{"), "}", "/p", ("required",)),
    "pattern": (obj(a={"type": "string", "pattern": "^[a-z]+$"}), begun("a", "string", "x"), "Y", "/a", ("pattern",)),
    "minLength": (obj(a={"type": "string", "minLength": 3}), begun("a", "string", "x"), "<|close|>", "/a", ("minLength",)),
    "maximum": (obj(a={"type": "integer", "maximum": 14}), begun("a", "number", "1"), "5", "/a", ("maximum",)),
    "minimum": (obj(a={"type": "integer", "minimum": 14}), begun("a", "number", "1"), "<|close|>", "/a", ("minimum",)),
    "items": (
        obj(a={"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
        begun("a", "array", "[[1],[2,"), '"', "/a/1/1", ("type",),
    ),
    "unknown key": (obj(a={}, b={}), '<|open|>argument key="', "zz", "", ("unknown key",)),
    "repeated key": (
        obj(a={"type": "integer"}, b={}), f'{block("a", "number", "1")}<|open|>argument key="', 'a"', "", ("repeated key",)
    ),
    "an escaped key": (
        {"type": "object", "properties": {'a"b/c': UNITS}}, begun("a&quot;b/c", "string"), "K", '/a"b~1c', ("enum",)
    ),
    "marker in a string": (obj(a={"type": "string"}), begun("a", "string"), "<|open|>", "/a", ("marker in a string",)),
    "a token of no format": (obj(a={"type": "string"}), begun("a", "string"), "<osagent_mode>", "/a", ("marker in a string",)),
    "the turn's end": (obj(a={"type": "string"}), "", "<|end_of_msg|>", "", ("end of the turn",)),
    "syntax": (obj(a={"type": "string"}), f'{begun("a", "string", "x")}<|close|>', "x", "/a", ("syntax",)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("wire_format", "case"),
    [*(pytest.param(KIMI_K2, case, id=f"Kimi K2, {name}") for name, case in SCHEMAS.items()),
     *(pytest.param(KIMI_K3, case, id=f"Kimi K3, {name}") for name, case in K3_SCHEMAS.items())],
)  # fmt: skip
def test_keywords_of_schemas(
    wire_format: WireFormat, case: tuple[dict[str, Any], str, str, str, tuple[str, ...]]
) -> None:
    schema, written, wanted, pointer, keywords = case
    found = place_of(
        {"tools": [tool(schema)]}, (CALL if wire_format is KIMI_K2 else K3_CALL) + written, wanted, wire_format
    )
    assert found == Site("arguments", "act", pointer, keywords)


def body(required: Sequence[str] = ("a",), **fields: Any) -> dict[str, Any]:
    return {"tools": [tool(obj([*required], a={"type": "string"})), tool(obj(c={}), "act_too")], **fields}


ANSWER = {"type": "json_schema", "json_schema": {"name": "x", "schema": obj(["u"], u=UNITS)}}
LOOSE = {"tools": [tool(obj(u=UNITS), strict=False)], "strict_false": "json_object"}
REST: dict[str, tuple[dict[str, Any], str, str, Site]] = {
    "undeclared name": (body(), f"{SECTION}functions.", "move", Site("call_id", "", None, ("undeclared name",))),
    "a longer name": (body(), f"{SECTION}functions.act_too", "2", Site("call_id", "", None, ("undeclared name",))),
    "header": (body(), SECTION, "act", Site("call_id", "", None, ("call header",))),
    "index": (body(), f"{SECTION}functions.act:", "1", Site("call_id", "act", None, ("index",))),
    "no index": (
        body(), f"{SECTION}functions.act", "<|tool_call_argument_begin|>", Site("call_id", "act", None, ("index",))
    ),
    "marker in a string": (
        body(), f'{CALL}{{"a":"x', "<|tool_call_end|>", Site("arguments", "act", "/a", ("marker in a string",))
    ),
    "a token of no format": (
        body(), f'{CALL}{{"a":"x', "<|im_user|>", Site("arguments", "act", "/a", ("marker in a string",))
    ),
    "the call's end": (
        body(), f'{CALL}{{"a":"x"', "<|tool_call_end|>", Site("arguments", "act", "", ("end of the call",))
    ),
    "the turn's end": (body(), f'{CALL}{{"a":"x"', "<|im_end|>", Site("arguments", "act", "", ("end of the turn",))),
    "text where a call is required": (
        body(tool_choice="required"), "", "Hello", Site("start", "", None, ("call required",))
    ),
    "an end where a call is required": (
        body(tool_choice="required"), "", "<|im_end|>", Site("start", "", None, ("call required",))
    ),
    "a call where none is allowed": (
        body(tool_choice="none"), "Hm", "<|tool_calls_section_begin|>", Site("text", "", None, ("no calls",))
    ),
    "no further call": (
        body(parallel_tool_calls=False), f'{CALL}{{"a":""}}{END}', "<|tool_call_begin|>",
        Site("between", "", None, ("no more calls",)),
    ),
    "no further call, by the bound": (
        body(max_calls=1), f'{CALL}{{"a":""}}{END}', "<|tool_call_begin|>",
        Site("between", "", None, ("no more calls",)),
    ),
    "a repeated call": (
        body(repeated_calls="forbid"),
        f'{CALL}{{"a":"x"}}{END}<|tool_call_begin|>functions.act:1<|tool_call_argument_begin|>{{"a":"x"}}', END,
        Site("arguments", "act", "", ("repeated call",)),
    ),
    "no reasoning": (body(), "", "<think>", Site("start", "", None, ("no reasoning",))),
    "text in the section": (
        body(), "<|tool_calls_section_begin|>", "\n", Site("section", "", None, ("text between markers",))
    ),
    "an end in the section": (
        body(), f'{CALL}{{"a":""}}{END}', "<|im_end|>", Site("between", "", None, ("end of the turn",))
    ),
    "a marker out of place": (body(), "Hm", "<|tool_call_end|>", Site("text", "", None, ("marker",))),
    "the second call": (
        body(), f'{CALL}{{"a":"x"}}{END}<|tool_call_begin|>functions.act_too:1<|tool_call_argument_begin|>{{', '"b',
        Site("arguments", "act_too", "", ("unknown key",)),
    ),
    "an answer's value": (body(response_format=ANSWER), '{"u":"', "K", Site("answer", "", "/u", ("enum",))),
    "an answer's end": (body(response_format=ANSWER), '{"u":', "<|im_end|>", Site("answer", "", "/u", ("end of the turn",))),
    "an answer's begin": (body(response_format=ANSWER), "", "Sure", Site("start", "", "", ("syntax",))),
    "no answer": (body(response_format=ANSWER), "", "<|im_end|>", Site("start", "", None, ("answer format",))),
    "a pattern of an answer": (
        {"structured_outputs": {"regex": "[a-c]+"}}, "a", "x", Site("answer", "", "", ("answer format",))
    ),
    "not in the schema that the request does not enforce": (
        LOOSE, f'{CALL}{{"u":', "x", Site("arguments", "act", "/u", ("syntax",))
    ),
    "not in any JSON object": (LOOSE, CALL, '"', Site("arguments", "act", "", ("type",))),
    "undeclared keys that are allowed": (
        {"tools": [tool(obj(u=UNITS) | {"maxProperties": 1})], "undeclared_keys": "allow"}, f'{CALL}{{"more":1', ",",
        Site("arguments", "act", "", ("maxProperties",)),
    ),
}  # fmt: skip


CALL_END = "<|close|>call<|sep|>"
K3_REST: dict[str, tuple[dict[str, Any], str, str, Site]] = {
    "undeclared name": (body([]), f'{TOOLS}<|open|>call tool="', "move", Site("call_id", "", None, ("undeclared name",))),
    "index": (body([]), f'{TOOLS}<|open|>call tool="act" index="', "0", Site("call_id", "act", None, ("index",))),
    "header": (body([]), f"{TOOLS}<|open|>call ", "to=", Site("call_id", "", None, ("call header",))),
    "an end where a call is required": (
        body([], tool_choice="required"), "<|close|>response<|sep|>", "<|close|>", Site("responded", "", None, ("call required",))
    ),
    "a call where none is allowed": (
        body([], tool_choice="none"), "<|close|>response<|sep|>", "<|open|>", Site("responded", "", None, ("no calls",))
    ),
    "no further call": (
        body([], parallel_tool_calls=False), K3_CALL + CALL_END, "<|open|>", Site("between", "", None, ("no more calls",))
    ),
    "a repeated call": (
        body([], repeated_calls="forbid"), f'{K3_CALL}{CALL_END}<|open|>call tool="act" index="2"<|sep|><|close|>', "call",
        Site("transition", "", None, ("repeated call",)),
    ),
    "within a transition": (body([]), "<|close|>", "answer", Site("transition", "", None, ("text between markers",))),
    "the second call": (
        body([]), f'{K3_CALL}{CALL_END}<|open|>call tool="act_too" index="2"<|sep|><|open|>argument key="', "b",
        Site("arguments", "act_too", "", ("unknown key",)),
    ),
    "an answer's value": (body([], response_format=ANSWER), '{"u":"', "K", Site("answer", "", "/u", ("enum",))),
}  # fmt: skip


@pytest.mark.parametrize(
    ("wire_format", "case"),
    [*(pytest.param(KIMI_K2, case, id=f"Kimi K2, {name}") for name, case in REST.items()),
     *(pytest.param(KIMI_K3, case, id=f"Kimi K3, {name}") for name, case in K3_REST.items())],
)  # fmt: skip
def test_causes_beyond_schemas(wire_format: WireFormat, case: tuple[dict[str, Any], str, str, Site]) -> None:
    request, written, wanted, place = case
    assert place_of(request, written, wanted, wire_format) == place


def test_reasoning() -> None:
    found = place_of(body(thinking=True), "Hm", "<|im_end|>", in_reasoning=True)
    assert found == Site("reasoning", "", None, ("end of the turn",))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "wanted", "pointer", "keyword"),
    [('{"u":"', "K", "/u", "enum"), ("{", "}", "", "required"), ('{"u":"celsius","', "zz", "", "unknown key")],
)
def test_xgrammars_masks(written: str, wanted: str, pointer: str, keyword: str) -> None:
    pytest.importorskip("xgrammar", reason="xgrammar is not installed")
    request = {"tools": [tool(obj(["u"], u=UNITS, a={"type": "string"}))], "engine": "xgrammar"}
    assert place_of(request, CALL + written, wanted) == Site("arguments", "act", pointer, (keyword,))
