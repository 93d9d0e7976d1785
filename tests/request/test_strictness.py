"""The strictness of a tool: its own `strict`, within the server's bounds."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from constrained_k2 import (
    Compiler,
    InvalidRequest,
    SchemaTooCostly,
    StrictPolicy,
    Tool,
    ToolCallSpec,
    UnsupportedSchema,
)
from constrained_k2.request.strictness import LEVELS, STRICT_FALSE, Level

UNKEPT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "minProperties": 70}
WHOLE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def spec(parameters: Any, **fields: Any) -> ToolCallSpec:
    return ToolCallSpec.from_openai(
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters} | fields}]}
    )


def test_levels() -> None:
    for least, most in itertools.combinations_with_replacement(LEVELS, 2):
        for strict_false, asked in itertools.product(STRICT_FALSE, (None, *STRICT_FALSE)):
            declared: dict[bool | None, Level] = {
                False: asked or strict_false, None: "best_effort", True: "strict"
            }  # fmt: skip
            for strict, level in declared.items():
                got = StrictPolicy(least, most, strict_false=strict_false).level(strict, asked)
                assert LEVELS.index(got) == min(max(LEVELS.index(level), LEVELS.index(least)), LEVELS.index(most))


def test_strict_is_read_and_written() -> None:
    for strict in (True, False, None):
        read = spec(WHOLE, **({} if strict is None else {"strict": strict}))
        assert read.tools[0].strict is strict
        assert ToolCallSpec.from_json(read.to_json()) == read
    with pytest.raises(InvalidRequest, match="strict"):
        spec(WHOLE, strict="yes")


def accepts(small_compiler: Compiler, tool: ToolCallSpec, text: str) -> bool:
    matcher = small_compiler.compile(tool).arguments("f")
    return all(map(matcher.accept, small_compiler.vocabulary.encode(text))) and matcher.is_complete()


def test_a_strict_tool_is_kept_whole_or_refused(small_compiler: Compiler) -> None:
    small_compiler.compile(spec(WHOLE, strict=True))
    with pytest.raises(UnsupportedSchema) as refused:
        small_compiler.compile(spec(UNKEPT, strict=True))
    assert refused.value.location == "tools[name='f'].function.parameters#/minProperties"
    assert refused.value.keyword == "minProperties"
    assert refused.value.remedy


def test_left_out_means_enforced_as_far_as_it_can_be(small_compiler: Compiler) -> None:
    compiled = small_compiler.compile(spec(UNKEPT))
    assert [use.pointer for use in compiled.coverage("f").relaxed] == ["#/minProperties"]
    assert not accepts(small_compiler, spec(UNKEPT), '{"a": "x"}')
    assert accepts(small_compiler, spec(UNKEPT), '{"a": 1}')


def test_strict_false_means_what_left_out_means(small_compiler: Compiler) -> None:
    not_strict = spec(UNKEPT, strict=False)
    assert small_compiler.compile(not_strict).coverage("f") == small_compiler.compile(spec(UNKEPT)).coverage("f")
    assert not accepts(small_compiler, not_strict, '{"a": "x"}')
    assert accepts(small_compiler, not_strict, '{"a": 1}')


DEEP: dict[str, Any] = {}
for _ in range(200):
    DEEP = {"properties": {"a": DEEP}}


@pytest.mark.parametrize(("parameters", "pointer"), [({"not": {}}, "#"), (DEEP, "#")], ids=str)
def test_strict_false_refuses_no_schema(small_compiler: Compiler, parameters: Any, pointer: str) -> None:
    """One without a grammar becomes any JSON object, with the reason in the coverage, also in what others are sent."""
    with pytest.raises((UnsupportedSchema, SchemaTooCostly)) as refused:
        small_compiler.compile(spec(parameters))
    compiled = small_compiler.compile(spec(parameters, strict=False))
    (use,) = compiled.coverage("f").relaxed
    assert use.pointer.startswith(pointer) and use.reason == f"{refused.value.problem}: any JSON object is allowed"
    assert compiled.level("f") == "json_object"
    assert compiled.resolved_spec.tools == (Tool("f", strict=False),)
    assert accepts(small_compiler, spec(parameters, strict=False), '{"b": ["x"]}')
    assert not accepts(small_compiler, spec(parameters, strict=False), "[]")


def test_a_server_that_enforces_refuses_all_the_same(small_compiler: Compiler) -> None:
    enforcing = Compiler(small_compiler.vocabulary, policy=StrictPolicy(min="best_effort"))
    with pytest.raises(UnsupportedSchema):
        enforcing.compile(spec({"not": {}}, strict=False))


def test_schemas_that_take_too_long_together(small_compiler: Compiler) -> None:
    hurried = Compiler(small_compiler.vocabulary, request_seconds=-1.0)
    with pytest.raises(SchemaTooCostly):
        hurried.compile(spec(WHOLE))
    compiled = hurried.compile(spec(WHOLE, strict=False))
    assert compiled.resolved_spec.tools == (Tool("f", strict=False),)


def test_servers_and_requests_may_take_strict_false_for_any_object(small_compiler: Compiler) -> None:
    lenient = Compiler(small_compiler.vocabulary, policy=StrictPolicy.from_config({"false": "json_object"}))
    assert accepts(lenient, spec(UNKEPT, strict=False), '{"b": ["x"]}')
    asked = replace(spec(UNKEPT, strict=False), strict_false="json_object")
    assert ToolCallSpec.from_json(asked.to_json()) == asked
    assert accepts(small_compiler, asked, '{"b": ["x"]}')
    assert not accepts(lenient, replace(asked, strict_false="best_effort"), '{"b": ["x"]}')
    with pytest.raises(InvalidRequest, match="strict_false: unknown level 'strict'. Use 'json_object' or"):
        ToolCallSpec.from_openai({"strict_false": "strict"})


def test_a_server_may_raise_and_lower(small_compiler: Compiler) -> None:
    strict = Compiler(small_compiler.vocabulary, policy=StrictPolicy.from_config("strict"))
    for said in (True, False, None):
        with pytest.raises(UnsupportedSchema):
            strict.compile(spec(UNKEPT, **({} if said is None else {"strict": said})))
    lenient = Compiler(small_compiler.vocabulary, policy=StrictPolicy.from_config({"max": "best_effort"}))
    lenient.compile(spec(UNKEPT, strict=True))


@pytest.mark.parametrize(
    "config",
    ["maybe", 1, {"min": "strict", "max": "json_object"}, {"level": "strict"}, ["strict"], {"min": {}}, {1: 2}],
)
def test_policies_that_are_none(config: Any) -> None:
    with pytest.raises(InvalidRequest, match="strict"):
        StrictPolicy.from_config(config)
