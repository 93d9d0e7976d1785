"""A wire format is one value: docs/contributing/wire-format.md is this test in words."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import jsonschema
import pytest

from constrained_k2 import Compiler, FormatMismatch, ToolCallSpec, Vocabulary, build_grammar, formats, parse_completion
from constrained_k2.formats import kimi_k2
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2, MARKER_TEXTS
from constrained_k2.formats.phases import Phase, Transition
from constrained_k2.vocabulary.vocabulary import _ByteEncoder
from tests.grammar.whole_turns import LarkOracle, refused_at, verdict
from tests.kit.tools import tool
from tests.kit.turns import steps, towards_the_end
from tests.kit.walks import ids_of

TEXTS = {**MARKER_TEXTS, "section_begin": "<|calls|>", "section_end": "<|/calls|>", "call_begin": "<|call|>"}
SPECIAL = KIMI_K2.special_texts | set(TEXTS.values())
EXAMPLE = replace(KIMI_K2, name="Example", marker_texts=TEXTS, special_texts=SPECIAL)
SCHEMA = {
    "type": "object",
    "properties": {"unit": {"enum": ["C", "F"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["unit", "days"],
    "additionalProperties": False,
}
BODY = {"tools": [tool("forecast", SCHEMA)], "tool_choice": "required"}


def vocabulary(texts: dict[str, str]) -> Vocabulary:
    special = {text: 256 + number for number, text in enumerate(texts.values())}
    return Vocabulary({byte: bytes((byte,)) for byte in range(256)}, special, 300, _ByteEncoder())


def speak(monkeypatch: pytest.MonkeyPatch, example: WireFormat) -> Vocabulary:
    """A vocabulary of a new format, known beside Kimi K2's."""
    monkeypatch.setattr(formats, "FORMATS", (KIMI_K2, example))
    return vocabulary(TEXTS)


def test_a_vocabulary_speaks_the_format_whose_markers_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FormatMismatch, match=r"<\|tool_calls_section_begin\|>"):
        vocabulary(TEXTS)
    assert speak(monkeypatch, EXAMPLE).format.name == "Example"
    assert vocabulary(dict(MARKER_TEXTS)).format.name == "Kimi K2"


@pytest.mark.parametrize("seed", range(20))
def test_a_turn_of_the_new_format_is_written_and_read(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    words = speak(monkeypatch, EXAMPLE)
    matcher = Compiler(words).compile(ToolCallSpec.from_openai(BODY | {"parallel_tool_calls": False})).matcher()
    ids = steps(matcher, Random(seed), 2000, towards_the_end(words, Random(seed), share=1))
    assert ids[0] == words.special_tokens["<|calls|>"]
    (call,) = parse_completion(ids, words).tool_calls
    assert call.id == "functions.forecast:0"
    jsonschema.validate(json.loads(call.arguments), SCHEMA)


TRANSITIONS = {**kimi_k2.TRANSITIONS, Phase.CLOSED: (Transition(("turn_end", b"END", "text_end"), Phase.DONE),)}
HEADER: Any = {"header_begin": "<", "header_index": "|", "header_end": ">"}
OTHER = replace(EXAMPLE, transitions=TRANSITIONS, first_index=1, counts_dialog=False, **HEADER)


def test_a_turn_of_another_structure_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    words = speak(monkeypatch, OTHER)
    matcher = Compiler(words).compile(ToolCallSpec.from_openai(BODY | {"first_index": 7})).matcher()

    def turn(header: str, end: str) -> list[int]:
        marker = {field: [words.special_tokens[text]] for field, text in TEXTS.items()}
        call = [*marker["call_begin"], *header.encode(), *marker["argument_begin"], *b'{"unit":"C","days":2}']
        ended = [*marker["call_end"], *marker["section_end"], *marker["turn_end"], *end.encode(), *marker["text_end"]]
        return [*marker["section_begin"], *call, *ended]

    ids = turn("<forecast|1>", "END")
    for refused in (turn("<forecast|8>", "END"), turn("<forecast|1", "END"), turn("<forecast|1>", "EN")):
        assert not matcher.accept_tokens(refused)
        assert matcher.num_tokens == 0
    for token in ids:
        assert token in ids_of(matcher)
        assert matcher.accept_tokens([token])
    assert matcher.is_terminated()
    matcher.rollback(4)
    assert matcher.forced_tokens() == [*b"END", ids[-1]]


@pytest.mark.parametrize("parallel", [True, False])
def test_the_whole_turn_grammar_writes_the_formats_headers(parallel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    headed = replace(OTHER, transitions=EXAMPLE.transitions)
    monkeypatch.setattr(formats, "FORMATS", (KIMI_K2, headed))
    words = vocabulary(TEXTS)
    spec = ToolCallSpec.from_openai(BODY | {"first_index": 7, "parallel_tool_calls": parallel})
    text = build_grammar(spec, markers=words.format)
    marker = {field: words.special_tokens[text] for field, text in TEXTS.items()}
    for header, refused in (("<forecast|1>", None), ("<forecast|8>", 12), ("<forecast|1", 13), ("functions.f:1", 2)):
        call = [marker["call_begin"], *header.encode(), marker["argument_begin"], *b'{"unit":"C","days":2}']
        ids = [marker["section_begin"], *call, marker["call_end"], marker["section_end"], marker["turn_end"]]
        assert refused_at(Compiler(words).compile(spec).matcher(), ids) == refused
        assert verdict(LarkOracle(text, words).accept, ids) == refused
