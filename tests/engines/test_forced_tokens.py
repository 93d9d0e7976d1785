"""Forced tokens are allowed by the masks, and asking for them changes no state."""

import threading
from typing import Any

import pytest

from constrained_k2 import Compiler, ToolCall, ToolCallSpec
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.prompts import render_tool_calls
from tests.kit.tools import tool
from tests.kit.walks import ids_of
from tests.turn.test_matcher import BODY, TABS, WEATHER

UNIT = {"type": "object", "properties": {"unit": {"enum": ["celsius"]}}, "required": ["unit"]}
FIXED = tool("measure_temperature", UNIT)


@pytest.mark.parametrize("engine", ["llguidance", pytest.param("xgrammar", marks=pytest.mark.slow)])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_forced_tokens_are_legal_and_change_nothing(compiler: Compiler, choice: str, engine: str) -> None:
    vocabulary = compiler.vocabulary
    body = {"tools": [WEATHER, TABS, FIXED], "tool_choice": choice, "parallel_tool_calls": False, "engine": engine}
    call = ToolCall("measure_temperature", 0, '{"unit": "celsius"}')
    matcher = compiler.compile(ToolCallSpec.from_openai(body)).matcher()
    forced_inside = 0
    for token in [*render_tool_calls([call], vocabulary), vocabulary.format.turn_end]:
        before = matcher.num_tokens, matcher.phase
        forced = matcher.forced_tokens()
        assert matcher.validate_tokens(forced) == forced
        assert matcher.forced_tokens(2) == forced[:2]
        assert (matcher.num_tokens, matcher.phase) == before
        if forced and matcher.token_set() is None and engine == "llguidance":
            assert ids_of(matcher) == forced[:1]
        forced_inside += matcher.arguments is not None and bool(forced)
        assert matcher.accept_tokens([token])
    assert matcher.forced_tokens() == []
    assert forced_inside, "nothing was ever forced inside the arguments, so this shows nothing"


def test_a_named_tool_is_forced_from_the_section_to_its_arguments(compiler: Compiler) -> None:
    vocabulary = compiler.vocabulary
    choice = {"type": "function", "function": {"name": "get_weather"}}
    spec = ToolCallSpec.from_openai({**BODY, "tool_choice": choice, "first_index": 7})
    matcher = compiler.compile(spec).matcher()
    rendered = render_tool_calls([ToolCall("get_weather", 7, '{"city":"x"}')], vocabulary)
    end = rendered.index(vocabulary.format.argument_begin) + 1
    assert matcher.forced_tokens() == rendered[:end]
    assert matcher.accept_tokens(rendered[: rendered.index(vocabulary.format.call_end)])
    assert matcher.forced_tokens() == [vocabulary.format.call_end, vocabulary.format.section_end]


def test_a_header_in_other_tokens_is_forced_to_its_end(compiler: Compiler) -> None:
    vocabulary = compiler.vocabulary
    markers, names = vocabulary.format, ("measure_temperature", "天气_weather")
    for name in names:
        spec = ToolCallSpec.from_openai({"tools": [tool(name)], "tool_choice": "required"})
        matcher = compiler.compile(spec).matcher()
        header = markers.call_id(name, 0).encode()
        for end in range(1, len(header)):
            matcher.reset()
            written = [found for byte in header[:end] if (found := vocabulary.find(bytes((byte,)))) is not None]
            assert matcher.accept_tokens([markers.section_begin, markers.call_begin, *written])
            forced = matcher.forced_tokens()
            try:
                header[end:].decode()
            except UnicodeDecodeError:
                assert matcher.validate_tokens(forced) == forced
                continue
            *rest, begin = forced[: forced.index(markers.argument_begin) + 1]
            assert b"".join(map(vocabulary.ordinary_bytes, rest)) == header[end:]
            assert matcher.accept_tokens([*rest, begin])


def test_nothing_is_forced_in_text(small_compiler: Compiler) -> None:
    matcher = small_compiler.compile(ToolCallSpec.from_openai(BODY)).matcher()
    assert matcher.forced_tokens() == []
    assert matcher.accept_tokens(small_compiler.vocabulary.encode("Hello"))
    assert matcher.forced_tokens() == []


def test_a_schema_compiles_while_its_functions_name_is_written(
    small_compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(small_compiler.vocabulary)
    compiled, begun, go_on = [], threading.Event(), threading.Event()
    compile_schema = LLGuidanceEngine.compile

    def slow(self: LLGuidanceEngine, schema: str, *options: Any) -> object:
        compiled.append(schema)
        begun.set()
        assert go_on.wait(30)
        return compile_schema(self, schema, *options)

    monkeypatch.setattr(LLGuidanceEngine, "compile", slow)
    matcher = compiler.compile(ToolCallSpec.from_openai(BODY), check=False).matcher()
    markers, encode = compiler.vocabulary.format, compiler.vocabulary.encode
    assert matcher.accept_tokens([markers.section_begin, markers.call_begin, *encode("functions.")])
    assert not compiled, "two functions may come yet"
    assert matcher.accept_tokens(encode("get_"))
    assert begun.wait(30)
    assert matcher.accept_tokens(encode("weather:0")), "the name is written on while the schema compiles"
    go_on.set()
    assert matcher.accept_tokens([markers.argument_begin])
    assert len(compiled) == 1
    matcher.reset()
    assert matcher.accept_tokens([markers.section_begin, markers.call_begin, *encode("functions.get_weather:0")])
    assert len(compiled) == 1
