"""The strictness of a tool: its own `strict`, within the server's bounds."""

import itertools
from collections.abc import Callable
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
    Vocabulary,
)
from constrained_k2.compiler import shared
from constrained_k2.compiler.coverage import byte_compiler
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.request.strictness import LEVELS, STRICT_FALSE, Level
from constrained_k2.threads.compile_pool import PoolBusy
from tests.kit.tools import tool
from tests.kit.turns import arguments

UNKEPT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "minProperties": 70}
WHOLE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def spec(parameters: Any, **fields: Any) -> ToolCallSpec:
    return ToolCallSpec.from_openai({"tools": [tool("f", parameters, **fields)]})


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


def accepts(small_compiler: Compiler, spec: ToolCallSpec, text: str) -> bool:
    matcher = small_compiler.compile(spec).arguments("f")
    return all(map(matcher.accept, small_compiler.vocabulary.encode(text))) and matcher.is_complete()


def test_a_strict_tool_is_kept_whole_or_refused(small_compiler: Compiler) -> None:
    small_compiler.compile(spec(WHOLE, strict=True))
    with pytest.raises(UnsupportedSchema) as refused:
        small_compiler.compile(spec(UNKEPT, strict=True))
    assert refused.value.location == "tools[name='f'].function.parameters#/minProperties"
    assert refused.value.keyword == "minProperties"
    assert refused.value.remedy


@pytest.mark.parametrize("fields", [{}, {"strict": False}])
def test_left_out_and_false_mean_enforced_as_far_as_it_can_be(small_compiler: Compiler, fields: Any) -> None:
    lenient = spec(UNKEPT, **fields)
    coverage = small_compiler.compile(lenient).coverage("f")
    assert [use.pointer for use in coverage.relaxed] == ["#/minProperties"]
    assert coverage == small_compiler.compile(spec(UNKEPT)).coverage("f")
    assert not accepts(small_compiler, lenient, '{"a": "x"}')
    assert accepts(small_compiler, lenient, '{"a": 1}')


DEEP: dict[str, Any] = {}
for _ in range(200):
    DEEP = {"properties": {"a": DEEP}}


WITHOUT_GRAMMAR: dict[str, Any] = {
    "no value": {"not": {}},
    "too deep": DEEP,
    # The form into which opencode converts schemas of MCP servers.
    "a closed reference": {"$ref": "#/$defs/a", "properties": {}, "additionalProperties": False, "$defs": {"a": WHOLE}},
    "closed alternatives": {"anyOf": [WHOLE, WHOLE], "properties": {}, "additionalProperties": False},
    "a missing key": {"properties": {}, "required": ["a"], "additionalProperties": False},
    "an enum of another type": {"properties": {"a": {"type": "string", "enum": [256]}}, "required": ["a"]},
    "an empty enum": {"properties": {"a": {"enum": []}}, "required": ["a"]},
    "half of a pair": {"properties": {"a": {"const": "\ud800"}}, "required": ["a"]},
    "infinite": {"properties": {"a": {"maximum": float("inf")}}},
    "too many parts": {"properties": {f"k{number}": {"type": "string"} for number in range(9_000)}},
    "a long name": {"properties": {"k" * 10_000: {}}},
    "endless": {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
}


@pytest.mark.parametrize("encoding", ["json", "xtml"])
@pytest.mark.parametrize("why", WITHOUT_GRAMMAR)
def test_a_schema_without_a_grammar_costs_only_its_tool(why: str, encoding: str) -> None:
    """Unless it is strict, it becomes any JSON object, in the spec for other processes too; coverage has the reason."""
    compiler = byte_compiler(wire_format=KIMI_K3 if encoding == "xtml" else KIMI_K2)

    def both(strict: bool | None) -> ToolCallSpec:
        tools = [tool("f", WITHOUT_GRAMMAR[why], strict=strict), tool("g", WHOLE, strict=True)]
        return ToolCallSpec.from_openai({"tools": tools})

    with pytest.raises((UnsupportedSchema, SchemaTooCostly)) as refused:
        compiler.compile(both(strict=True))
    assert refused.value.location.startswith("tools[name='f'].function.parameters")
    for strict in (None, False):
        compiled = compiler.compile(both(strict))
        for coverage in (compiled.coverage("f"), compiled.admission_coverage("f")):
            (use,) = coverage.relaxed
            assert use.pointer.startswith("#") and use.reason == f"{refused.value.problem}: any JSON object is allowed"
        assert compiled.level("f") == "json_object" and compiled.level("g") == "strict"
        assert compiled.resolved_spec.tools == (Tool("f", strict=strict), compiled.spec.tools[1])
        assert not compiled.coverage("g").relaxed
        texts: dict[str, dict[str, Any]] = {"f": {"b": ["x"], "a": None}, "g": {"a": 1}}
        for name, value in texts.items():
            tokens, matcher = arguments(compiler.vocabulary, value), compiled.arguments(name)
            assert all(map(matcher.accept, tokens)) and matcher.is_complete()


def test_any_object_is_an_object(small_compiler: Compiler) -> None:
    assert accepts(small_compiler, spec({"not": {}}), '{"b": ["x"]}')
    assert not accepts(small_compiler, spec({"not": {}}), "[]")


@pytest.mark.parametrize("config", ["best_effort", "strict", {"min": "best_effort"}])
@pytest.mark.parametrize("strict", [None, False])
def test_a_server_that_enforces_refuses_all_the_same(
    small_compiler: Compiler, config: Any, *, strict: bool | None
) -> None:
    enforcing = Compiler(small_compiler.vocabulary, policy=StrictPolicy.from_config(config))
    with pytest.raises(UnsupportedSchema):
        enforcing.compile(spec({"not": {}}, strict=strict))


@pytest.mark.parametrize("format", ["regex", "lark"])
def test_a_custom_tool_keeps_to_its_grammar(small_compiler: Compiler, format: str) -> None:  # noqa: A002 - the field
    custom = {"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": format, "definition": "("}}
    with pytest.raises(UnsupportedSchema, match="definition"):
        small_compiler.compile(ToolCallSpec.from_openai({"tools": [custom]}))


def test_schemas_that_take_too_long_together(small_compiler: Compiler) -> None:
    hurried = Compiler(small_compiler.vocabulary, request_seconds=-1.0)
    with pytest.raises(SchemaTooCostly):
        hurried.compile(spec(WHOLE, strict=True))
    for strict in (None, False):
        assert hurried.compile(spec(WHOLE, strict=strict)).resolved_spec.tools == (Tool("f", strict=strict),)


@pytest.mark.parametrize("error", [TimeoutError, PoolBusy])
def test_a_schema_that_takes_too_long(monkeypatch: pytest.MonkeyPatch, error: type[TimeoutError]) -> None:
    compiler = Compiler(Vocabulary.of_bytes(), compile_seconds=1.0)

    def late(work: Callable[[], Any], seconds: float | None) -> Any:
        made = work()
        if made[0].coverage.narrowed:  # not any object
            raise error("late")
        return made

    monkeypatch.setattr(shared, "run_bounded", late)
    with pytest.raises(SchemaTooCostly, match="late"):
        compiler.compile(spec(WHOLE, strict=True))
    (use,) = compiler.compile(spec(WHOLE)).coverage("f").relaxed
    assert use.reason == "late (over 1000 ms): any JSON object is allowed"


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
    assert lenient.compile(spec({"not": {}}, strict=True)).level("f") == "json_object"


@pytest.mark.parametrize(
    "config",
    ["maybe", 1, {"min": "strict", "max": "json_object"}, {"level": "strict"}, ["strict"], {"min": {}}, {1: 2}],
)
def test_policies_that_are_none(config: Any) -> None:
    with pytest.raises(InvalidRequest, match="strict"):
        StrictPolicy.from_config(config)
