"""Turns without a server: the number of allowed tokens at each place, and the first forbidden one."""

import pytest

from constrained_k2 import KIMI_K2, Compiler, ToolCallSpec, Vocabulary
from constrained_k2.explain.offline import explain_offline
from constrained_k2.explain.view import TurnView
from constrained_k2.vocabulary.bitmask import allocate_bitmask, allowed_ids
from tests.explain.test_places import CALL, END, UNITS, obj
from tests.explain.turns import byte_compiler, ids_of, tool

SPEC = ToolCallSpec.from_openai({"tools": [tool(obj(["u"], u=UNITS))]})
REST = f"{END}<|tool_calls_section_end|><|im_end|>"


def view(text: str, vocabulary: Vocabulary, spec: ToolCallSpec = SPEC) -> TurnView:
    compiled = Compiler(vocabulary).compile(spec)
    return explain_offline(compiled, byte_compiler(KIMI_K2).compile(spec), ids_of(text, vocabulary))


def test_a_turn_within_the_mask(small_vocabulary: Vocabulary) -> None:
    text = f'{CALL}{{"u":"celsius"}}{REST}'
    found = view(text, small_vocabulary)
    assert "".join(token.text for token in found.tokens) == text
    assert not found.overrides
    matcher = Compiler(small_vocabulary).compile(SPEC).matcher()
    bitmask = allocate_bitmask(1, small_vocabulary.size)
    for token, token_id in zip(found.tokens, ids_of(text, small_vocabulary), strict=True):
        matcher.fill_bitmask(bitmask)
        assert token.allowed == len(allowed_ids(bitmask[0]))
        assert matcher.accept_tokens([token_id])
    assert found.forced >= 4
    assert 1 < (found.tokens[0].allowed or 0) < small_vocabulary.size  # text, or a call


@pytest.mark.parametrize(
    ("text", "place", "keywords"),
    [
        (f'{CALL}{{"u":"CELSIUS"}}{REST}', "/u", ["enum"]),
        (f"{CALL}{{}}{REST}", "(arguments)", ["required"]),
        ("<|tool_calls_section_begin|><|tool_call_begin|>functions.other:0", "call_id", ["undeclared name"]),
    ],
)
def test_the_first_forbidden_token(text: str, place: str, keywords: list[str], small_vocabulary: Vocabulary) -> None:
    found = view(text, small_vocabulary)
    (override,) = found.overrides
    assert (override.place, override.keywords, override.written) == (place, keywords, None)
    assert [token.allowed is None for token in found.tokens] == [
        position > override.position for position in range(len(found.tokens))
    ]


def test_tokens_after_the_end(small_vocabulary: Vocabulary) -> None:
    found = view("Hi<|im_end|>more", small_vocabulary)
    assert found.tokens[-1].allowed is None
    assert not found.overrides
