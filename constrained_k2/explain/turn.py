"""Explains a written turn: what the mask allowed at each place, and what the model wanted there.

The mask is computed here, along the turn. What the model wanted is known if a server has said how likely each token
was without the constraint: ``prompt_logprobs`` of the prompt and the turn, sent back as a prompt.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import exp

import numpy as np
import numpy.typing as npt

from constrained_k2.compiler.compiled import CompiledToolCalls
from constrained_k2.compiler.compiler import Compiler
from constrained_k2.explain.limits import DEFAULT_LIMITS, ExplainLimits
from constrained_k2.explain.overrides import explain_rows
from constrained_k2.explain.records import ExaminedRow, Override
from constrained_k2.explain.view import Alternative, Token, TurnView, WantedToken
from constrained_k2.parsing import parse_completion
from constrained_k2.request.spec import ToolCallSpec
from constrained_k2.turn.intent import Intent
from constrained_k2.vocabulary.bitmask import allocate_bitmask
from constrained_k2.vocabulary.vocabulary import Vocabulary

LIKELIEST = 20
"""The tokens that a server is asked for at each place: as many as vLLM gives unless it is told otherwise."""

CONTESTED = 0.05
"""The least probability of a forbidden token that is shown where the likeliest token is allowed: sampling might have
chosen it."""

_ALTERNATIVES = 5  # that are shown at each place

Likeliest = Mapping[int, float]
"""Some tokens of one place, the likeliest among them, with the logarithms of their probabilities."""


class TurnExplainer:
    """Explains turns in one vocabulary; its compilers remember the schemas of earlier requests."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        # What a server declined is explained, whatever its threshold.
        self._compiler = Compiler(vocabulary, undeclared_calls="decline")
        over_bytes = Vocabulary.of_bytes(vocabulary.format)
        self._over_bytes = Compiler(over_bytes, mask_cache_bytes=0, undeclared_calls="decline")

    def explain(
        self,
        spec: ToolCallSpec,
        token_ids: Sequence[int],
        likeliest: Sequence[Likeliest] = (),
        *,
        in_reasoning: bool = False,
        limits: ExplainLimits = DEFAULT_LIMITS,
    ) -> TurnView:
        """Explain a turn. Places after the first token that the mask forbids are not examined.

        Args:
            spec: The request.
            token_ids: The turn.
            likeliest: For each of its tokens what the model would have written; empty if that is not known.
            in_reasoning: True if the prompt began the reasoning.
            limits: Limits on the cost.

        Raises:
            ConstrainedK2Error: The request cannot be constrained.
        """
        ids, vocabulary = list(token_ids), self.vocabulary
        compiled, over_bytes = self._compiler.compile(spec), self._over_bytes.compile(spec)
        allowed, rows, chances, has_declined = [], list[ExaminedRow](), dict[int, float](), False
        for position, (row, call, intent) in enumerate(_masks(compiled, ids, in_reasoning=in_reasoning)):
            allowed.append(int(np.unpackbits(row.view(np.uint8)).sum()))
            is_known = position < len(likeliest)
            if is_known and intent is not None:
                meant = set(intent.meant.tolist())
                chance = sum(exp(min(0.0, value)) for token, value in likeliest[position].items() if token in meant)
                chances[call] = min(chances.get(call, 1.0), chance)
            # Behind a declined call the model goes on with what it was kept from: that tells nothing new.
            is_known = is_known and (intent is not None or not has_declined)
            has_declined = has_declined or (intent is not None and intent.closing == ids[position])
            examined = _examined(position, likeliest[position], row, allowed[-1]) if is_known else None
            if not _allows(row, ids[position]):
                examined = ExaminedRow(position, ids[position], True, 0.0, 0.0, allowed[-1])  # noqa: FBT003
            rows += [] if examined is None else [examined]
        found = explain_rows(
            over_bytes, vocabulary, ids, rows, in_reasoning=in_reasoning, contested=CONTESTED, limits=limits
        )
        overrides = [_wanted(each) for each in found if each.row.is_overridden]
        return TurnView(
            [Token(vocabulary.decode([each]), *allowed[at : at + 1]) for at, each in enumerate(ids)],
            overrides,
            sum(row.is_overridden for row in rows),
            [_wanted(each) for each in found if not each.row.is_overridden],
            min(len(allowed), len(likeliest)) if likeliest else None,
            [self._alternatives(each) for each in likeliest] if len(likeliest) == len(ids) else [],
            [chances[call] for call in sorted(chances)],
        )

    def spec_of(self, body: object, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> tuple[ToolCallSpec, bool]:
        """Return a chat request's constraint, and True if its prompt began the reasoning.

        A body need not say whether the model reasons; the prompt or the turn does.

        Raises:
            InvalidRequest: A field is invalid.
            MalformedCompletion: The turn has ids beyond the vocabulary.
        """
        in_reasoning = self.vocabulary.opens_reasoning(prompt_ids)
        parsed = parse_completion(list(token_ids), self.vocabulary, in_reasoning=in_reasoning)
        reasons = in_reasoning or bool(parsed.reasoning)
        return ToolCallSpec.from_openai(body, thinking=reasons), in_reasoning

    def _alternatives(self, likeliest: Likeliest) -> list[Alternative]:
        first = sorted(likeliest.items(), key=lambda item: -item[1])[:_ALTERNATIVES]
        return [Alternative(self.vocabulary.decode([token]), exp(min(0.0, value))) for token, value in first]


def _masks(
    compiled: CompiledToolCalls, token_ids: Sequence[int], *, in_reasoning: bool
) -> Iterator[tuple[npt.NDArray[np.int32], int, Intent | None]]:
    """Yield the mask at each token, int32 ``[words]``, up to the first token that it forbids or the turn's end.

    With each come the number of calls before it, and what decides whether the call is made.
    """
    matcher = compiled.matcher(in_reasoning=in_reasoning)
    bitmask = allocate_bitmask(rows=1, size=compiled.vocabulary.size)
    row: npt.NDArray[np.int32] = np.asarray(bitmask)[0]
    for token_id in token_ids:
        if matcher.is_terminated():
            return
        call, intent = matcher.num_calls, matcher.intent()
        matcher.fill_bitmask(bitmask, row=0)
        if intent is not None and intent.closing == token_id:  # the call was declined
            row[token_id >> 5] |= np.uint32(1 << (token_id & 31)).view(np.int32)
        if _allows(row, token_id) and not matcher.accept_tokens([token_id]):
            row[token_id >> 5] &= ~(np.int32(1) << np.int32(token_id & 31))
        yield row, call, intent
        if not _allows(row, token_id):
            return


def _allows(row: npt.NDArray[np.int32], token_id: int) -> bool:
    return bool(row[token_id >> 5] >> (token_id & 31) & 1)


def _examined(position: int, likeliest: Likeliest, row: npt.NDArray[np.int32], allowed: int) -> ExaminedRow | None:
    """Return what the mask forbids of the likeliest tokens; None for nothing."""
    forbidden = {token: exp(min(0.0, value)) for token, value in likeliest.items() if not _allows(row, token)}
    if not forbidden:
        return None
    wanted = max(forbidden, key=lambda token: likeliest[token])
    is_overridden = likeliest[wanted] >= max(likeliest.values())
    return ExaminedRow(position, wanted, is_overridden, forbidden[wanted], min(1.0, sum(forbidden.values())), allowed)


def _wanted(override: Override) -> WantedToken:
    row, place = override.row, override.place
    is_refused = row.wanted == override.written
    return WantedToken(
        row.position,
        place.phase,
        place.tool,
        place.pointer,
        place.keywords,
        override.wanted_text,
        None if is_refused else override.written_text,
        None if is_refused else round(row.probability, 6),
        None if is_refused else round(row.forbidden, 6),
    )
