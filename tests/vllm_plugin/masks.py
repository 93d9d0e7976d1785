"""Masks to compare with, of matchers that nothing but a turn's tokens has happened to; and the masks of vLLM's grammars."""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from constrained_k2 import Compiler, ToolCallMatcher, ToolCallSpec, Vocabulary
from constrained_k2.vllm_plugin.engine_core.grammar import ToolCallGrammar
from constrained_k2.vocabulary.bitmask import TokenSet, allowed_ids, words_per_row
from tests.kit.walks import row_of


@cache
def fresh_compiler(vocabulary: Vocabulary) -> Compiler:
    """A compiler that no engine under test uses, without a mask cache: every mask is computed for its own matcher."""
    return Compiler(vocabulary, mask_cache_bytes=0)


def mask_after(vocabulary: Vocabulary, body: Any, ids: list[int], **options: Any) -> npt.NDArray[np.int32]:
    """The mask behind these tokens of a request's turn; ``options`` are the matcher's."""
    matcher = fresh_compiler(vocabulary).compile(ToolCallSpec.from_openai(body)).matcher(**options)
    assert matcher.accept_tokens(ids)
    return row_of(matcher)


def grammar_of(matcher: ToolCallMatcher) -> ToolCallGrammar:
    """The grammar of the structured-output route around a matcher."""
    vocabulary = matcher.vocabulary
    return ToolCallGrammar(matcher, TokenSet((vocabulary.format.turn_end,), vocabulary.size), "a")


def allowed_by(grammar: ToolCallGrammar, vocabulary: Vocabulary) -> list[int]:
    """The tokens in a grammar's mask; it writes no other row."""
    bitmask = torch.full((2, words_per_row(vocabulary.size)), -1, dtype=torch.int32)
    grammar.fill_bitmask(bitmask, 1)
    assert bool((bitmask[0] == -1).all())
    found: list[int] = allowed_ids(bitmask[1].numpy()).tolist()
    return found
