"""Turns: the number of allowed tokens at each place, the first forbidden one, and what the model wanted."""

from math import log

import pytest

from constrained_k2 import Compiler, ToolCall, ToolCallSpec, Vocabulary
from constrained_k2.explain.turn import Likeliest, TurnExplainer
from constrained_k2.explain.view import TurnView, WantedToken
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.prompts.xtml import render_turn
from constrained_k2.vocabulary.bitmask import allocate_bitmask, allowed_ids
from tests.explain.turns import CALL, END, UNITS, ids_of, obj, tool

SPEC = ToolCallSpec.from_openai({"tools": [tool(obj(["u"], u=UNITS))]})
REST = f"{END}<|tool_calls_section_end|><|im_end|>"


def view(text: str, vocabulary: Vocabulary, spec: ToolCallSpec = SPEC) -> TurnView:
    return TurnExplainer(vocabulary).explain(spec, ids_of(text, vocabulary))


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
        (f'{CALL}{{"u":"CELSIUS"}}{REST}', "/u", ("enum",)),
        (f"{CALL}{{}}{REST}", "(arguments)", ("required",)),
        ("<|tool_calls_section_begin|><|tool_call_begin|>functions.other:0", "call_id", ("undeclared name",)),
    ],
)
def test_the_first_forbidden_token(
    text: str, place: str, keywords: tuple[str, ...], small_vocabulary: Vocabulary
) -> None:
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


def test_what_the_model_wanted(small_vocabulary: Vocabulary) -> None:
    """At each place the mask itself says which of the likeliest tokens it forbids."""
    ids = ids_of(f'{CALL}{{"u":"celsius"}}{REST}', small_vocabulary)
    k, c, quote = (small_vocabulary.encode(text)[0] for text in ("K", "c", '"'))
    start = len(ids_of(f'{CALL}{{"u":"', small_vocabulary))
    likeliest: list[Likeliest] = [{each: log(0.9), quote: log(1e-6)} for each in ids]
    likeliest[start] = {ids[start]: log(0.2), k: log(0.5), quote: log(0.25)}
    likeliest[start + 1] = {ids[start + 1]: log(0.6), c: log(0.3), k: log(0.01)}
    found = TurnExplainer(small_vocabulary).explain(SPEC, ids, likeliest)
    written, other = (small_vocabulary.decode([each]) for each in ids[start : start + 2])
    site = ("arguments", "act", "/u", ("enum",))
    assert found.overrides == [WantedToken(start, *site, "K", written, 0.5, 0.75)]
    assert found.contested == [WantedToken(start + 1, *site, "c", other, 0.3, 0.31)]
    assert (found.overrides_count, found.examined_rows) == (1, len(ids))
    assert [each.text for each in found.alternatives[start]] == ["K", '"', written]


def test_a_request_that_reasons(small_vocabulary: Vocabulary) -> None:
    explainer = TurnExplainer(small_vocabulary)
    body = {"tools": [tool(obj(["u"], u=UNITS))]}
    turns = {"Hm</think>Hi<|im_end|>": "<think>", "<think>Hm</think>Hi<|im_end|>": "", "Hi<|im_end|>": ""}
    for text, prompt in turns.items():
        prompt_ids = ids_of(f"<|im_assistant|>assistant<|im_middle|>{prompt}", small_vocabulary)
        ids = ids_of(text, small_vocabulary)
        spec, in_reasoning = explainer.spec_of(body, prompt_ids, ids)
        assert (spec.thinking, in_reasoning) == ("think" in prompt + text, bool(prompt))
        assert not explainer.explain(spec, ids, in_reasoning=in_reasoning).overrides, text


def test_a_turn_of_kimi_k3_that_reasons() -> None:
    vocabulary = Vocabulary.of_bytes(KIMI_K3)
    explainer = TurnExplainer(vocabulary)
    ids = render_turn([ToolCall("act", 1, '{"u": "celsius"}')], vocabulary, response="So", reasoning="Hm.")
    opening = vocabulary.format.located(vocabulary.format.reasoning_opening)
    prompt = [token for piece in opening or () for token in ([piece] if isinstance(piece, int) else piece)]
    spec, in_reasoning = explainer.spec_of({"tools": [tool(obj(["u"], u=UNITS))]}, prompt, ids)
    assert spec.thinking and in_reasoning
    found = explainer.explain(spec, ids, in_reasoning=in_reasoning)
    assert not found.overrides and found.tokens[-1].allowed is not None


def test_the_wanted_token_of_a_declined_call_is_shown_and_none_behind_it() -> None:
    vocabulary = Vocabulary.of_bytes()
    markers = vocabulary.format
    ids = [markers.section_begin, markers.call_begin, *b"functions.", markers.section_end, markers.turn_end]
    likeliest: list[dict[int, float]] = [{token: log(0.99)} for token in ids]
    likeliest[-2] = {ord("z"): log(0.9), ord("a"): log(0.05)}
    likeliest[-1] = {ord("z"): log(0.9)}
    view = TurnExplainer(vocabulary).explain(SPEC, ids, likeliest)
    (override,) = view.overrides
    assert (override.phase, override.wanted, override.written) == ("call_id", "z", "<|tool_calls_section_end|>")
    assert view.chances == pytest.approx([0.05])
