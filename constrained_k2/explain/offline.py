"""Explains a turn without a server: how many tokens the mask allows at each place, and the first one it forbids."""

import numpy as np

from constrained_k2.compiler.compiled import CompiledToolCalls
from constrained_k2.explain.overrides import explain_rows
from constrained_k2.explain.records import ExaminedRow
from constrained_k2.explain.view import Token, TurnView, WantedToken
from constrained_k2.vocabulary.bitmask import allocate_bitmask


def explain_offline(
    compiled: CompiledToolCalls, over_bytes: CompiledToolCalls, token_ids: list[int], *, in_reasoning: bool = False
) -> TurnView:
    """The view of a turn; the tokens after the first forbidden one are not examined.

    Args:
        compiled: The request, compiled for the model's vocabulary.
        over_bytes: The same request, compiled over the bytes of its format.
        token_ids: The turn.
        in_reasoning: True if the prompt began the reasoning.
    """
    vocabulary, matcher = compiled.vocabulary, compiled.matcher(in_reasoning=in_reasoning)
    bitmask = allocate_bitmask(rows=1, size=vocabulary.size)
    tokens: list[Token] = []
    overrides: list[WantedToken] = []
    for position, token_id in enumerate(token_ids):
        allowed = None
        if not overrides and not matcher.is_terminated():
            matcher.fill_bitmask(bitmask, row=0)
            row: np.ndarray = np.asarray(bitmask)[0]
            allowed = int(np.unpackbits(row.view(np.uint8)).sum())
            is_masked = not row[token_id >> 5] >> (token_id & 31) & 1
            if is_masked or not matcher.accept_tokens([token_id]):
                overrides.append(_refused(over_bytes, compiled, token_ids[: position + 1], in_reasoning=in_reasoning))
        tokens.append(Token(vocabulary.decode([token_id]), allowed))
    return TurnView(tokens, overrides, len(overrides))


def _refused(
    over_bytes: CompiledToolCalls, compiled: CompiledToolCalls, token_ids: list[int], *, in_reasoning: bool
) -> WantedToken:
    """The last token, which is forbidden."""
    row = ExaminedRow(len(token_ids) - 1, (), token_ids[-1], is_overridden=True, probability=0, forbidden=0, allowed=0)
    (found,) = explain_rows(over_bytes, compiled.vocabulary, token_ids, [row], in_reasoning=in_reasoning)
    place = found.place
    return WantedToken(row.position, place.phase, place.tool, place.pointer, list(place.keywords), found.wanted_text,
                       None, None, None)  # fmt: skip
