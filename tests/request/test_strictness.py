"""The strictness of a tool: its own `strict`, within the server's bounds."""

import itertools
from typing import Any

import pytest

from constrained_k2 import Compiler, InvalidRequest, StrictPolicy, ToolCallSpec, UnsupportedSchema
from constrained_k2.request.strictness import LEVELS

UNKEPT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "minProperties": 4}
WHOLE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def spec(parameters: Any, **fields: Any) -> ToolCallSpec:
    return ToolCallSpec.from_openai(
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters} | fields}]}
    )


def test_levels() -> None:
    declared = {False: "json_object", None: "best_effort", True: "strict"}
    for least, most in itertools.combinations_with_replacement(LEVELS, 2):
        for strict, level in declared.items():
            got = StrictPolicy(least, most).level(strict)
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


def test_not_strict_means_any_object(small_compiler: Compiler) -> None:
    assert accepts(small_compiler, spec(UNKEPT, strict=False), '{"b": ["x"]}')
    assert accepts(small_compiler, spec({"type": "nonsense"}, strict=False), "{}")
    assert not accepts(small_compiler, spec(UNKEPT, strict=False), "[]")


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


@pytest.mark.parametrize(
    "config", [{"least": "enforce", "most": "strict"}, {"min": "enforce"}, {"least": "best_effort"}]
)
def test_old_names_are_read_with_a_warning(config: Any) -> None:
    for make in (StrictPolicy.from_config, lambda names: StrictPolicy(**names)):
        with pytest.warns(FutureWarning, match="is now '(min|best_effort)'"):
            assert make(config) == StrictPolicy(min="best_effort")
