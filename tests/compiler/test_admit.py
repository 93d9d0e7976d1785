"""Admission compiles only what the shape of a schema leaves open, and what it got wrong costs no call."""

import json
import logging
from typing import Any

import pytest

from constrained_k2 import (
    Compiler,
    SchemaTooCostly,
    ToolCall,
    ToolCallSpec,
    UnsupportedSchema,
    Vocabulary,
    render_tool_calls,
)
from constrained_k2.compiler.compiled import CompiledToolCalls
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.xgrammar.engine import XGrammarEngine
from tests.kit.tools import tool

PLAIN = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
OTHER = {"type": "object", "minProperties": 1}
RELAXED = {"properties": {"a": {"type": "string", "pattern": "(a+)-\\1"}}}


def request(compiler: Compiler, *schemas: Any, strict: bool | None = None, **fields: Any) -> CompiledToolCalls:
    tools = [tool(f"f{number}", schema, strict=strict) for number, schema in enumerate(schemas)]
    return compiler.compile(ToolCallSpec.from_openai({"tools": tools} | fields), check=False)


@pytest.fixture
def compiler() -> Compiler:
    return Compiler(Vocabulary.of_bytes())


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The schemas that engines compile."""
    found: list[str] = []
    for engine in (LLGuidanceEngine, XGrammarEngine):
        compile_schema = engine.compile

        def compiling(self: Any, schema: str, *args: Any, compile_schema: Any = compile_schema) -> Any:
            found.append(schema)
            return compile_schema(self, schema, *args)

        monkeypatch.setattr(engine, "compile", compiling)
    return found


@pytest.mark.parametrize("strict", [None, True])
def test_plain_schemas_are_admitted_without_an_engine(compiler: Compiler, read: list[str], strict: bool | None) -> None:
    compiled = request(compiler, PLAIN, OTHER, {}, strict=strict)
    compiled.admit()
    assert ["minProperties" in schema for schema in read] == [True]
    assert compiled.fast_path_count == 2
    assert [tool.name for tool in compiled.compiled_tools] == ["f1"]
    assert not compiled.admission_coverage("f0").inexact
    assert len(read) == 1
    assert compiled.coverage("f0").enforced, "asked for in full"
    assert len(read) == 2


def patterned(pattern: str, **others: int) -> dict[str, Any]:
    return {"properties": {"p": {"type": "string", "pattern": pattern}, **{key: {} for key in others}}}


def test_a_pattern_is_compiled_by_itself_and_once(compiler: Compiler, read: list[str]) -> None:
    compiled = request(compiler, patterned("^[A-Z]{3}$", a=1), patterned("^[A-Z]{3}$", b=1))
    compiled.admit()
    assert compiled.fast_path_count == 2
    request(compiler, patterned("^[A-Z]{3}$", c=1)).admit()
    assert ["A-Z" in schema for schema in read] == [True]
    assert not {"a", "b", "c"} & set(json.loads(read[0])["properties"])


def test_patterns_take_the_time_of_their_request() -> None:
    compiler = Compiler(Vocabulary.of_bytes(), compile_seconds=1.0, request_seconds=1e-9)
    with pytest.raises(SchemaTooCostly, match="a request") as caught:
        request(compiler, patterned("^a"), patterned("^b"), strict=True).admit()
    assert "f1" in caught.value.location
    request(compiler, patterned("^a"), patterned("^a", more=1), strict=True).admit()
    late = request(compiler, patterned("^a", other=1), patterned("^c"), patterned("^a", more=1), patterned("^d"))
    late.admit()
    assert [tool.name for tool in late.spec.tools if late.level(tool.name) == "json_object"] == ["f3"]


def test_a_check_of_all_compiles_all(compiler: Compiler, read: list[str]) -> None:
    request(compiler, PLAIN, OTHER).check_all()
    assert len(read) == 2


@pytest.mark.slow
def test_another_engine_compiles_all(compiler: Compiler, read: list[str]) -> None:
    request(compiler, PLAIN, engine="xgrammar").admit()
    assert len(read) == 1


def test_what_is_not_plain_is_refused_if_strict(compiler: Compiler) -> None:
    with pytest.raises(UnsupportedSchema, match="no value satisfies"):
        request(compiler, PLAIN, {"not": {}}, strict=True).admit()
    with pytest.raises(UnsupportedSchema, match="strict"):
        request(compiler, PLAIN, RELAXED, strict=True).admit()
    compiled = request(compiler, PLAIN, RELAXED)
    compiled.admit()
    assert [use.keyword for use in compiled.admission_coverage("f1").relaxed] == ["pattern"]


def test_large_plain_schemas_are_slow(compiler: Compiler) -> None:
    inner: dict[str, Any] = {"properties": {f"q{m}": {} for m in range(40)}}
    large: dict[str, Any] = {"properties": {f"p{n}": inner for n in range(4)}}
    compiled = request(compiler, PLAIN, large)
    compiled.admit()
    assert compiled.slow_tools(0.005) == [1]
    assert compiled.slow_tools(1.0) == []
    assert request(compiler, large, tool_choice="none").slow_tools(0.005) == []


@pytest.mark.parametrize(("strict", "goes_on"), [(None, True), (False, True), (True, False)])
def test_a_plain_schema_that_does_not_compile(
    compiler: Compiler,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    strict: bool | None,
    goes_on: bool,
) -> None:
    """The call goes on as any JSON object; a strict one ends, for nothing could check it."""
    compile_schema = LLGuidanceEngine.compile

    def failing(self: Any, schema: str, *args: Any) -> Any:
        if "properties" in schema:
            raise UnsupportedSchema("forced", "#", "Remove it")
        return compile_schema(self, schema, *args)

    monkeypatch.setattr(LLGuidanceEngine, "compile", failing)
    compiled = request(compiler, PLAIN, strict=strict)
    compiled.admit()
    matcher, vocabulary = compiled.matcher(), compiler.vocabulary
    ids = [*render_tool_calls([ToolCall("f0", 0, '{"b":[1]}')], vocabulary), vocabulary.format.turn_end]
    opening = ids.index(vocabulary.format.argument_begin)
    assert matcher.accept_tokens(ids[:opening])
    if not goes_on:
        with pytest.raises(UnsupportedSchema, match="forced"):
            matcher.accept_tokens(ids[opening:])
        return
    with caplog.at_level(logging.WARNING):
        assert matcher.accept_tokens(ids[opening:])
    assert matcher.is_terminated()
    said = "tools[name='f0'].function.parameters: admitted without compiling it: '# (forced: any"
    assert caplog.text.count(said) == 1
    for coverage in (compiled.coverage("f0"), compiled.admission_coverage("f0")):
        assert [use.reason for use in coverage.relaxed] == ["forced: any JSON object is allowed"]
    assert [tool.name for tool in compiled.compiled_tools] == ["f0"] and not compiled.fast_path_count
    assert compiler.counts.snapshot()["late_refusals"] == 1
    compiled.arguments("f0")
    assert compiler.counts.snapshot()["late_refusals"] == 1


def test_a_strict_schema_that_was_not_checked_and_does_not_compile_ends_the_call(compiler: Compiler) -> None:
    matcher, vocabulary = request(compiler, {"not": {}}, strict=True).matcher(), compiler.vocabulary
    ids = render_tool_calls([ToolCall("f0", 0, "{}")], vocabulary)
    with pytest.raises(UnsupportedSchema, match="no value satisfies"):
        matcher.accept_tokens(ids)
