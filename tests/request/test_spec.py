import json
from typing import Any

import pytest

from constrained_k2 import (
    Compiler,
    ConstrainedK2Error,
    InvalidRequest,
    Limits,
    SchemaTooCostly,
    Tool,
    ToolCallSpec,
    UnsupportedSchema,
)
from constrained_k2.request.spec import _undecoded
from tests.kit.data import table


def function(name: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


F, G = function("f"), function("g", parameters={"type": "object", "properties": {"b": {}, "a": {}}})


def test_reads_what_a_request_says() -> None:
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = {
        "model": "kimi-k2",
        "tools": [F, G],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call, call]},
                     {"role": "tool", "content": "1"}, {"role": "assistant", "tool_calls": [call]}],
        "chat_template_kwargs": {"thinking": True},
    }  # fmt: skip
    spec = ToolCallSpec.from_openai(body)
    assert spec.tools == (Tool("f"), Tool("g", '{"type":"object","properties":{"b":{},"a":{}}}'))
    assert (spec.choice, spec.parallel, spec.first_index, spec.thinking) == ("required", False, 3, True)
    assert spec.max_calls == 1
    assert ToolCallSpec.from_json(spec.to_json()) == spec


CHAT = "chat_template_kwargs"
FG = ("f", "g")
NO_SCHEMAS: tuple[Any, ...] = (None, {}, True)  # any object


def chosen(*names: str, choice: str = "auto", max_calls: int | None = None) -> dict[str, Any]:
    return {"names": names, "choice": choice, "max_calls": max_calls}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        *(({"repeated_calls": value}, {"repeated_calls": value}) for value in (None, "allow", "forbid")),
        ({"max_calls": 3}, {"max_calls": 3, "call_limit": 3}),
        ({"max_calls": None}, {"max_calls": None, "call_limit": None}),
        ({"max_calls": 3, "parallel_tool_calls": False}, {"max_calls": 1, "call_limit": 3}),
        ({"max_calls": 3, "tool_choice": function("g")}, {"max_calls": 1, "call_limit": 3}),
        ({"max_calls": 3, "tool_choice": "none"}, {"max_calls": 0, "call_limit": 3}),
        ({"max_calls": 3, "tools": None}, {"max_calls": 0, "call_limit": 3}),
        ({"tool_choice": None}, chosen(*FG)),
        ({"tool_choice": "auto"}, chosen(*FG)),
        ({"tool_choice": "none"}, chosen(*FG, choice="none", max_calls=0)),
        ({"tool_choice": "required"}, chosen(*FG, choice="required")),
        ({"tool_choice": function("g")}, chosen("g", choice="required", max_calls=1)),
        ({"tool_choice": {"type": "function", "name": "g"}}, chosen("g", choice="required", max_calls=1)),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [function("g")]}}},
         chosen("g", choice="required")),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}}, chosen("f")),
        *(({"tools": [function("f", parameters=schema)]}, {"tools": (Tool("f"),)}) for schema in NO_SCHEMAS),
        ({"tools": [{"type": "function", "name": "f", "parameters": {}}]}, {"tools": (Tool("f"),)}),
        ({"thinking": True}, {"thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"thinking": False}),
        ({"thinking": {"type": "enabled"}}, {"thinking": True}),
        ({CHAT: {"thinking": False}}, {"thinking": False}),
        ({CHAT: {"enable_thinking": True}}, {"thinking": True}),
        ({CHAT: {}}, {"thinking": True}), ({}, {"thinking": True}),
    ],
)  # fmt: skip
def test_fields_are_read_and_pass_through_json(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    spec = ToolCallSpec.from_openai({"tools": [F, G]} | fields, thinking=True)
    found = {"names": tuple(tool.name for tool in spec.tools)}
    assert {name: found.get(name, getattr(spec, name, None)) for name in expected} == expected
    text = spec.to_json()
    assert ToolCallSpec.from_json(text) == spec == ToolCallSpec.from_openai(json.loads(text))
    assert _undecoded(text) is not None


@pytest.mark.parametrize("field", ["input_schema", "inputSchema"])
def test_schemas_under_the_names_of_other_apis(field: str) -> None:
    schema: dict[str, Any] = {"properties": {"a": {}}}
    read = Tool("f", '{"properties":{"a":{}}}')
    for tool in (
        function("f", **{field: schema}),
        function("f", parameters=None, **{field: schema}),
        {**function("f"), field: schema},
        {"type": "function", "name": "f", field: schema},
    ):
        assert ToolCallSpec.from_openai({"tools": [tool]}).tools == (read,)
    strict = ToolCallSpec.from_openai({"tools": [function("f", strict=True, **{field: schema})]})
    assert strict.tools == (Tool("f", read.schema, strict=True),)
    others: tuple[Any, ...] = (None, "text", [], True, 5)
    for other in others:
        assert ToolCallSpec.from_openai({"tools": [function("f", **{field: other})]}).tools == (Tool("f"),)
    both = function("f", parameters={"required": ["b"]}, **{field: schema})
    assert ToolCallSpec.from_openai({"tools": [both]}).tools == (Tool("f", '{"required":["b"]}'),)


DEEP: Any = []
for _ in range(5000):
    DEEP = [DEEP]  # its repr() raises RecursionError

BAD: list[list[Any]] = [  # a body, the location of the error, and for some a part of the problem
    *table(__file__),
    *([{field: DEEP}, field] for field in ("tool_choice", "thinking", "first_index", "engine")),
    *([{field: DEEP}, f"{field}[0]"] for field in ("tools", "messages")),
    [{"tools": [{"type": DEEP}]}, "tools[0].type"],
    [{"tools": [F], "tool_choice": {"type": DEEP}}, "tool_choice.type"],
    [{"tools": [F], "tool_choice": {"type": "allowed_tools", "mode": DEEP}}, "tool_choice.mode"],
]


@pytest.mark.parametrize("row", BAD, ids=[row[1] for row in BAD])
def test_bad_bodies_are_refused_with_the_location(row: list[Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ToolCallSpec.from_openai(row[0])
    assert refused.value.location == row[1]
    assert all(said in refused.value.problem for said in row[2:])


@pytest.mark.parametrize("text", ["", "{", '{"tools": [', "\x00", b"\xff\xfe", "[" * 100_000, "nul", None, {}])
def test_texts_that_are_not_json(text: Any) -> None:
    with pytest.raises(InvalidRequest):
        ToolCallSpec.from_json(text)


def test_bytes_that_are_not_utf8_inside_an_undecoded_schema() -> None:
    text = ToolCallSpec((Tool("f", '{"title":"?"}'),)).to_json().encode().replace(b"?", b"\xff")
    with pytest.raises(InvalidRequest, match=r"^body: must be JSON: .*utf-8"):
        ToolCallSpec.from_json(text)


def test_budgets() -> None:
    with pytest.raises(SchemaTooCostly, match="10000 tools") as too_many:
        ToolCallSpec.from_openai({"tools": [function(f"f{i}") for i in range(10_000)]})
    assert (too_many.value.budget, too_many.value.limit, too_many.value.actual) == ("tools", 1024, 10_000)
    big = function("f", parameters={"description": "x" * 10_000_000})
    with pytest.raises(SchemaTooCostly, match="bytes"):
        ToolCallSpec.from_openai({"tools": [big]})
    with pytest.raises(SchemaTooCostly, match="name"):
        ToolCallSpec.from_openai({"tools": [function("n" * 10_240)]})
    assert ToolCallSpec.from_openai({"tools": [big]}, limits=Limits(tools_bytes=1 << 30)).tools


def test_deep_schemas_are_refused_not_crashed_on() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"not": deep}
    with pytest.raises(ConstrainedK2Error):
        ToolCallSpec.from_openai({"tools": [function("f", parameters=deep)]})


def test_errors_travel_between_processes() -> None:
    import pickle

    with pytest.raises(SchemaTooCostly) as caught:
        ToolCallSpec.from_openai({"tools": [function("n" * 999)]})
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.limit == 256


def test_the_spec_is_hashable_and_ascii_safe() -> None:
    spec = ToolCallSpec.from_openai({"tools": [function("查询", parameters={"title": "\ud800"})]})
    assert hash(spec) == hash(ToolCallSpec.from_json(spec.to_json()))
    assert json.loads(spec.to_json())["tools"][0]["function"]["name"] == "查询"


def test_what_a_spec_wrote_is_read_as_any_other_json_is() -> None:
    """Schemas are not decoded on that way; with a space in front the text is read on the other one."""
    body = {"tools": [F, G, function("h", strict=True, parameters={"title": "ø\U0001f600\n", "required": ["b", "a"]})]}
    for fields in ({}, {"engine": "xgrammar", "thinking": True, "first_index": 7}, {"tool_choice": "required"}):
        text = ToolCallSpec.from_openai(body | fields).to_json()
        assert _undecoded(text) is not None
        other = text.replace('"first_index":', '"first_index": ', 1).replace("{", '{"ignored":0,', 1)
        assert _undecoded(other) is None
        assert ToolCallSpec.from_json(text) == ToolCallSpec.from_json(other) == ToolCallSpec.from_openai(body | fields)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ('{"maximum":' + "9" * 5000 + "}", "not valid JSON"),
        ('{"maximum":NaN}', "nan is not a number in JSON"),
        ("[]", "must be a JSON Schema object"),
        ("false", "allows no arguments"),
        ('{"not":' * 3000 + "{}" + "}" * 3000, "recursion depth|over the limit of 200"),  # Python 3.13 decodes it
    ],
    ids=["5000 digits", "NaN", "an array", "false", "depth 3000"],
)
def test_specs_of_others_are_checked_all_the_same(small_compiler: Compiler, parameters: str, message: str) -> None:
    strict = Tool("f", '{"title":0}', strict=True)
    text = ToolCallSpec((strict, Tool("g"))).to_json().replace('{"title":0}', parameters)
    with pytest.raises(ConstrainedK2Error, match=message):
        small_compiler.compile(ToolCallSpec.from_json(text))


def test_names_in_specs_of_others() -> None:
    text = ToolCallSpec((Tool("f"), Tool("g"))).to_json().replace('"g"', '"f"')
    assert ToolCallSpec.from_json(text).tools == (Tool("f"),)
    either = ToolCallSpec((Tool("f", '{"title":0}'), Tool("f", '{"title":1}'))).to_json()
    with pytest.raises(InvalidRequest, match=r"tools\[1\]"):
        ToolCallSpec.from_json(either.replace('{"title":1}', '{"title":' + "9" * 5000 + "}"))


@pytest.mark.parametrize(
    ("strict", "merged"), [([None, True], True), ([False, False], False), ([None, False], None), ([None, None], None)]
)
def test_tools_of_one_name_and_one_schema(strict: list[bool | None], merged: bool | None) -> None:
    same = [function("f", parameters={"title": "a"}, strict=each) for each in strict]
    merged_tool, other = Tool("f", '{"title":"a"}', merged), *ToolCallSpec.from_openai({"tools": [G]}).tools
    assert ToolCallSpec.from_openai({"tools": [same[0], G, same[1]]}).tools == (merged_tool, other)


@pytest.mark.parametrize("resource", [{}, {"$id": "https://example.com/tool"}], ids=["no id", "one id"])
def test_arguments_of_different_tools_of_one_name_satisfy_either_schema(
    small_compiler: Compiler, resource: dict[str, Any]
) -> None:
    """References resolve inside the schema that contains them, even if both schemas have the same ``$id``."""
    schemas: list[dict[str, Any]] = [
        resource | {"type": "object", "properties": {name: {"$ref": "#/$defs/x"}}, "required": [name],
         "additionalProperties": False, "$defs": {"x": {"type": kind}}}
        for name, kind in (("a", "integer"), ("b", "string"))
    ]  # fmt: skip
    read = ToolCallSpec.from_openai({"tools": [function("f", parameters=each) for each in schemas]})
    assert ToolCallSpec.from_json(read.to_json()) == read
    compiled = small_compiler.compile(read)

    def accepts(text: str) -> bool:
        matcher = compiled.arguments("f")
        return all(map(matcher.accept, small_compiler.vocabulary.encode(text))) and matcher.is_complete()

    assert accepts('{"a":1}') and accepts('{"b":"x"}')
    assert not any(map(accepts, ('{"a":"x"}', '{"b":1}', "{}", '{"a":1,"b":"x"}')))


@pytest.mark.parametrize("schema", ["{", "[]", '"a"', "{} x"])
def test_a_tool_whose_schema_is_no_json_object(small_compiler: Compiler, schema: str) -> None:
    with pytest.raises(UnsupportedSchema, match=r"tools\[name='f'\]\.function\.parameters"):
        small_compiler.compile(ToolCallSpec((Tool("f", schema, strict=True),)))
    assert small_compiler.compile(ToolCallSpec((Tool("f", schema),))).level("f") == "json_object"
