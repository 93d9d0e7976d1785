"""Masks to compare with: of matchers that nothing but a turn's tokens has happened to."""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from constrained_k2 import Compiler, ToolCallMatcher, ToolCallSpec, Vocabulary
from constrained_k2.vocabulary.bitmask import allocate_bitmask


def row_of(matcher: ToolCallMatcher) -> npt.NDArray[np.int32]:
    """A matcher's mask."""
    bitmask = allocate_bitmask(1, matcher.vocabulary.size)
    matcher.fill_bitmask(bitmask)
    return bitmask[0]


@cache
def fresh_compiler(vocabulary: Vocabulary) -> Compiler:
    """A compiler that no engine under test uses, without a mask cache: every mask is computed for its own matcher."""
    return Compiler(vocabulary, mask_cache_bytes=0)


def mask_after(vocabulary: Vocabulary, body: Any, ids: list[int], **options: Any) -> npt.NDArray[np.int32]:
    """The mask behind these tokens of a request's turn; ``options`` are the matcher's."""
    matcher = fresh_compiler(vocabulary).compile(ToolCallSpec.from_openai(body)).matcher(**options)
    assert matcher.accept_tokens(ids)
    return row_of(matcher)
