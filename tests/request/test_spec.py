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


def test_repeated_calls_pass_through_json() -> None:
    for value in (None, "allow", "forbid"):
        spec = ToolCallSpec.from_openai({"tools": [F], "repeated_calls": value})
        assert spec.repeated_calls == value and ToolCallSpec.from_json(spec.to_json()) == spec
        assert _undecoded(spec.to_json()) is not None


@pytest.mark.parametrize(
    ("fields", "bound"),
    [
        ({"max_calls": 3}, 3),
        ({"max_calls": None}, None),
        ({"max_calls": 3, "parallel_tool_calls": False}, 1),
        ({"max_calls": 3, "tool_choice": function("g")}, 1),
        ({"max_calls": 3, "tool_choice": "none"}, 0),
        ({"max_calls": 3, "tools": None}, 0),
    ],
)
def test_the_smallest_bound_of_calls_holds(fields: dict[str, Any], bound: int | None) -> None:
    spec = ToolCallSpec.from_openai({"tools": [F, G]} | fields)
    assert (spec.max_calls, spec.call_limit) == (bound, fields["max_calls"])
    text = spec.to_json()
    assert ToolCallSpec.from_json(text) == spec == ToolCallSpec.from_openai(json.loads(text))
    assert _undecoded(text) is not None


@pytest.mark.parametrize("parameters", [None, {}, True])
def test_no_parameters_means_any_object(parameters: Any) -> None:
    assert ToolCallSpec.from_openai({"tools": [function("f", parameters=parameters)]}).tools == (Tool("f"),)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, (("f", "g"), "auto", None)),
        ("auto", (("f", "g"), "auto", None)),
        ("none", (("f", "g"), "none", 0)),
        ("required", (("f", "g"), "required", None)),
        (function("g"), (("g",), "required", 1)),
        ({"type": "function", "name": "g"}, (("g",), "required", 1)),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [function("g")]}},
         (("g",), "required", None)),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
         (("f",), "auto", None)),
    ],
)  # fmt: skip
def test_tool_choice(choice: Any, expected: Any) -> None:
    spec = ToolCallSpec.from_openai({"tools": [F, G], "tool_choice": choice})
    assert (tuple(tool.name for tool in spec.tools), spec.choice, spec.max_calls) == expected
    assert ToolCallSpec.from_json(spec.to_json()) == spec


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


def test_flat_tools_of_the_responses_endpoint() -> None:
    spec = ToolCallSpec.from_openai({"tools": [{"type": "function", "name": "f", "parameters": {}}]})
    assert spec.tools == (Tool("f"),)


@pytest.mark.parametrize(
    ("value", "thinking"),
    [({"thinking": True}, True), ({"thinking": {"type": "disabled"}}, False), ({"thinking": {"type": "enabled"}}, True),
     ({"chat_template_kwargs": {"thinking": False}}, False), ({"chat_template_kwargs": {"enable_thinking": True}}, True),
     ({"chat_template_kwargs": {}}, True), ({}, True)],
)  # fmt: skip
def test_thinking(value: Any, thinking: bool) -> None:
    assert ToolCallSpec.from_openai(value, thinking=True).thinking is thinking


DEEP: Any = []
for _ in range(5000):
    DEEP = [DEEP]  # its repr() raises RecursionError

NO_BOUNDS: tuple[Any, ...] = (0, -1, True, 1.0, "2", [], 10**9)
NO_RULES: tuple[Any, ...] = (True, 1, "never", [])
BAD: list[tuple[Any, str]] = [
    ([], "body"),
    ({"tools": {}}, "tools"),
    ({"tools": "f"}, "tools"),
    ({"tools": [1]}, r"tools\[0\]"),
    ({"tools": [F, None]}, r"tools\[1\]"),
    ({"tools": [{"type": "function"}]}, r"tools\[0\]"),
    ({"tools": [{"type": "web_search"}]}, r"tools\[0\]\.type"),
    ({"tools": [{"type": "function", "function": []}]}, r"tools\[0\]\.function"),
    ({"tools": [function(None)]}, r"tools\[0\]\.function\.name"),
    ({"tools": [function("")]}, r"tools\[0\]\.function\.name.*empty"),
    ({"tools": [function("a\tb")]}, r"tools\[0\]\.function\.name.*control"),
    ({"tools": [function("a<|tool_call_end|>")]}, r"tools\[0\]\.function\.name.*special token"),
    ({"tools": [function("f", parameters=[])]}, r"tools\[0\]\.function\.parameters"),
    ({"tools": [function("f", parameters="{}")]}, r"tools\[0\]\.function\.parameters"),
    ({"tools": [function("f", parameters=False)]}, r"tools\[0\]\.function\.parameters"),
    ({"tools": [F], "tool_choice": "maybe"}, "tool_choice"),
    ({"tools": [F], "tool_choice": 1}, "tool_choice"),
    ({"tools": [F], "tool_choice": function("h")}, "tool_choice.*'h'"),
    ({"tools": [F], "tool_choice": {"type": "function"}}, "tool_choice"),
    ({"tools": [F], "tool_choice": {"type": "function", "function": 1}}, "tool_choice"),
    ({"tools": [F], "tool_choice": {"type": "custom"}}, r"tool_choice: missing"),
    ({"tools": [{"type": "custom"}]}, r"tools\[0\]\.name"),
    ({"tools": [{"type": "custom", "custom": {"name": "f", "format": 1}}]}, r"tools\[0\]\.custom\.format: must be"),
    ({"tools": [{"type": "custom", "name": "f", "format": {}}]}, r"tools\[0\]\.format\.type"),
    (
        {"tools": [{"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "lark"}}]},
        r"tools\[0\]\.format\.definition",
    ),
    (
        {
            "tools": [
                F,
                {"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
            ]
        },
        r"tools\[1\]\.name: another tool has this name",
    ),
    ({"tools": [F], "tool_choice": {"type": "web_search"}}, r"tool_choice\.type"),
    ({"tools": [F], "tool_choice": {"type": "allowed_tools"}}, r"tool_choice\.tools"),
    ({"tools": [F], "tool_choice": {"type": "allowed_tools", "allowed_tools": 1}}, r"tool_choice\.allowed_tools"),
    ({"tools": [F], "tool_choice": {"type": "allowed_tools", "mode": "x", "tools": [F]}}, r"tool_choice\.mode"),
    ({"tools": [F], "tool_choice": {"type": "allowed_tools", "tools": [F, G]}}, r"tool_choice\.tools\[1\]"),
    ({"tool_choice": "required"}, "tool_choice.*no tools"),
    ({"tools": [], "tool_choice": function("f")}, "tool_choice.*no tools"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"messages": {}}, "messages"),
    ({"messages": [1]}, r"messages\[0\]"),
    ({"messages": [{"tool_calls": 1}]}, r"messages\[0\]\.tool_calls"),
    ({"first_index": -1}, "first_index"),
    ({"first_index": True}, "first_index"),
    *(({"max_calls": bad}, "max_calls: must be a whole number from 1") for bad in NO_BOUNDS),
    *(({"repeated_calls": bad}, "repeated_calls: must be 'allow' or 'forbid'") for bad in NO_RULES),
    ({"thinking": "yes"}, "thinking"),
    ({"thinking": {"type": "maybe"}}, r"thinking\.type"),
    ({"chat_template_kwargs": {"thinking": 1}}, r"chat_template_kwargs\.thinking"),
    ({"chat_template_kwargs": {"enable_thinking": 1}}, r"chat_template_kwargs\.enable_thinking"),
    ({"chat_template_kwargs": [], "thinking": True}, "chat_template_kwargs: must be an object"),
    *(({field: DEEP}, field) for field in ("tools", "tool_choice", "messages", "thinking", "first_index", "engine")),
    ({"tools": [{"type": DEEP}]}, r"tools\[0\]\.type"),
    ({"tools": [F], "tool_choice": {"type": DEEP}}, r"tool_choice\.type"),
    ({"tools": [F], "tool_choice": {"type": "allowed_tools", "mode": DEEP}}, r"tool_choice\.mode"),
]


@pytest.mark.parametrize(("body", "location"), BAD)
def test_bad_bodies_are_refused_with_the_place(body: Any, location: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{location}"):
        ToolCallSpec.from_openai(body)


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


def test_equal_tools_of_one_name_are_one() -> None:
    assert ToolCallSpec.from_openai({"tools": [F, G, F]}).tools == ToolCallSpec.from_openai({"tools": [F, G]}).tools


@pytest.mark.parametrize(
    ("strict", "merged"), [([None, True], True), ([False, False], False), ([None, False], None), ([None, None], None)]
)
def test_tools_of_one_name_and_one_schema(strict: list[bool | None], merged: bool | None) -> None:
    same = [function("f", parameters={"title": "a"}, strict=each) for each in strict]
    assert ToolCallSpec.from_openai({"tools": same}).tools == (Tool("f", '{"title":"a"}', merged),)


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
