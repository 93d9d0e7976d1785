"""The kinds of refusals, by the messages of the installed LLGuidance."""

import llguidance
import pytest

from constrained_k2.engines.llguidance.lexer_cost import LIMITS
from constrained_k2.engines.llguidance.refusal import Refused, grammar_of, has_no_text, refusal

TOKENIZER = llguidance.LLTokenizer("byte", slices=[])
MESSAGES = {
    "start: T\nT: /.*b.{9000}/ & /.*c.{9000}/": "lexer",
    "start: " + " ".join(['"a"'] * 60_000): "size",
    "start: MISSING": "other",
}


def matcher_of(lark: str) -> llguidance.LLMatcher:
    return llguidance.LLMatcher(TOKENIZER, grammar_of(lark), log_level=0, limits=LIMITS)


@pytest.mark.parametrize(("lark", "kind"), MESSAGES.items(), ids=MESSAGES.values())
def test_a_message_has_a_kind(lark: str, kind: str) -> None:
    matcher = matcher_of(lark)
    if not matcher.is_error():
        matcher.compute_bitmask()
    assert refusal(matcher.get_error()).kind == kind


def test_the_grammar_in_a_message_decides_nothing() -> None:
    matcher = matcher_of('start: "lexer" | "fuel"')
    matcher.consume_token(0)
    error = refusal(matcher.get_error())
    assert "fuel" in str(error) and error.kind == "other" and "\n" not in error.cause


@pytest.mark.parametrize(("lark", "is_empty"), [("start: T\nT: /a/ & /b/", True), ("start: T\nT: /a/", False)])
def test_a_terminal_without_texts(lark: str, *, is_empty: bool) -> None:
    matcher = matcher_of(lark)
    matcher.compute_bitmask()
    assert has_no_text(matcher) == is_empty


def test_half_a_character_is_refused() -> None:
    with pytest.raises(Refused, match="surrogates"):
        grammar_of('start: "\ud800"')
