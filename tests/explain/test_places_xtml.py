"""The same in Kimi K3's arguments, which are a block for each member."""

from typing import Any

import pytest

from constrained_k2.explain.view import Place
from constrained_k2.formats.kimi_k3 import KIMI_K3
from tests.explain.test_places import ANSWER, POINT, UNITS, obj
from tests.explain.turns import place_of, tool

TOOLS = "<|close|>response<|sep|><|open|>tools<|sep|>"
CALL = f'{TOOLS}<|open|>call tool="act" index="1"<|sep|>'


def block(key: str, kind: str, value: str) -> str:
    return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'


def begun(key: str, kind: str, value: str = "") -> str:
    return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}'


SCHEMAS: dict[str, tuple[dict[str, Any], str, str, str, tuple[str, ...]]] = {
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


@pytest.mark.parametrize("name", SCHEMAS)
def test_keywords_of_schemas(name: str) -> None:
    schema, written, wanted, pointer, keywords = SCHEMAS[name]
    found = place_of({"tools": [tool(schema)]}, CALL + written, wanted, KIMI_K3)
    assert found == Place("arguments", "act", pointer, keywords)


def body(**fields: Any) -> dict[str, Any]:
    return {"tools": [tool(obj(a={"type": "string"})), tool(obj(c={}), "act_too")], **fields}


CALL_END = "<|close|>call<|sep|>"
REST: dict[str, tuple[dict[str, Any], str, str, Place]] = {
    "undeclared name": (body(), f'{TOOLS}<|open|>call tool="', "move", Place("call_id", "", None, ("undeclared name",))),
    "index": (body(), f'{TOOLS}<|open|>call tool="act" index="', "0", Place("call_id", "act", None, ("index",))),
    "header": (body(), f"{TOOLS}<|open|>call ", "to=", Place("call_id", "", None, ("call header",))),
    "an end where a call is required": (
        body(tool_choice="required"), "<|close|>response<|sep|>", "<|close|>", Place("responded", "", None, ("call required",))
    ),
    "a call where none is allowed": (
        body(tool_choice="none"), "<|close|>response<|sep|>", "<|open|>", Place("responded", "", None, ("no calls",))
    ),
    "no further call": (
        body(parallel_tool_calls=False), CALL + CALL_END, "<|open|>", Place("between", "", None, ("no more calls",))
    ),
    "a repeated call": (
        body(repeated_calls="forbid"), f'{CALL}{CALL_END}<|open|>call tool="act" index="2"<|sep|><|close|>', "call",
        Place("joint", "", None, ("repeated call",)),
    ),
    "within a joint": (body(), "<|close|>", "answer", Place("joint", "", None, ("text between markers",))),
    "the second call": (
        body(), f'{CALL}{CALL_END}<|open|>call tool="act_too" index="2"<|sep|><|open|>argument key="', "b",
        Place("arguments", "act_too", "", ("unknown key",)),
    ),
    "an answer's value": (body(response_format=ANSWER), '{"u":"', "K", Place("answer", "", "/u", ("enum",))),
}  # fmt: skip


@pytest.mark.parametrize("name", REST)
def test_causes_beyond_schemas(name: str) -> None:
    request, written, wanted, place = REST[name]
    assert place_of(request, written, wanted, KIMI_K3) == place
