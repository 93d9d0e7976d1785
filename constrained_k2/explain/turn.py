"""Explains a finished turn: the number of allowed tokens at each step, and the overridden tokens.

The masks are computed here, along the turn. An overridden token is the unmasked argmax that the mask forbade. It is
known if a server gives the probabilities without the constraint: ``prompt_logprobs`` of the prompt and the turn, sent
back as a prompt.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import exp
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from constrained_k2.compiler.compiled import CompiledToolCalls
from constrained_k2.compiler.compiler import Compiler
from constrained_k2.explain.overrides import find_places
from constrained_k2.explain.subject import DEFAULT_LIMITS, ExplainLimits
from constrained_k2.explain.view import Alternative, Site, Token, TurnView, WantedToken
from constrained_k2.parsing import parse_completion
from constrained_k2.request.spec import ToolCallSpec
from constrained_k2.turn.intent import Intent
from constrained_k2.vocabulary.bitmask import allocate_bitmask
from constrained_k2.vocabulary.vocabulary import Vocabulary

LIKELIEST = 20
"""The tokens that a server is asked for at each step: vLLM's default maximum."""

CONTESTED = 0.05
"""The least probability of a forbidden token that is shown if the likeliest token is allowed: sampling might have
chosen it."""

_ALTERNATIVES = 5  # tokens that are shown at each step

Likeliest = Mapping[int, float]
"""Some tokens of one step, the likeliest among them, with the logarithms of their probabilities."""


class TurnExplainer:
    """Explains turns in one vocabulary; its compilers remember the schemas of earlier requests."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        # Calls that a server declined are explained, whatever its threshold was.
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
        """Explain a turn. Steps after the first token that the mask forbids are not examined.

        ``likeliest`` has the likeliest tokens at each token of the turn, or is empty if they are not known. Raises
        ``ConstrainedK2Error`` if the request cannot be constrained.
        """
        ids, vocabulary = list(token_ids), self.vocabulary
        compiled, over_bytes = self._compiler.compile(spec), self._over_bytes.compile(spec)
        allowed, wanted, chances = list[int](), dict[int, _Wanted](), dict[int, float]()
        for position, mask in enumerate(_masks(compiled, ids, in_reasoning=in_reasoning)):
            allowed.append(int(mask.allowed.sum()))
            likely = likeliest[position] if position < len(likeliest) else {}
            # After a declined call the model only continues the forbidden call: that says nothing new.
            most = None if mask.has_declined else _forbidden(likely, mask.allowed)
            if not mask.allowed[ids[position]]:
                most = _Wanted(ids[position], is_overridden=True)
            if most is not None:
                wanted[position] = most
            if likely and mask.intent is not None:
                meant = set(mask.intent.meant.tolist())
                chance = sum(_probability(value) for token, value in likely.items() if token in meant)
                chances[mask.call] = min(chances.get(mask.call, 1.0), chance)
        shown = {at: each for at, each in wanted.items() if each.is_overridden or each.probability >= CONTESTED}
        tokens = {at: each.token for at, each in shown.items()}
        places = find_places(over_bytes, vocabulary, ids, tokens, in_reasoning=in_reasoning, limits=limits)
        found = {at: self._shown(at, place, shown[at], ids[at]) for at, place in places.items()}
        return TurnView(
            [Token(vocabulary.decode([each]), *allowed[at : at + 1]) for at, each in enumerate(ids)],
            [each for at, each in found.items() if shown[at].is_overridden],
            sum(each.is_overridden for each in wanted.values()),
            [each for at, each in found.items() if not shown[at].is_overridden],
            min(len(allowed), len(likeliest)) if likeliest else None,
            [self._alternatives(each) for each in likeliest] if len(likeliest) == len(ids) else [],
            [chances[call] for call in sorted(chances)],
        )

    def spec_of(self, body: object, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> tuple[ToolCallSpec, bool]:
        """Return a chat request's constraint, and True if its prompt began the reasoning.

        A body need not say whether the model reasons; the prompt or the turn does. Raises ``InvalidRequest`` for an
        invalid field, ``MalformedCompletion`` for ids beyond the vocabulary.
        """
        in_reasoning = self.vocabulary.opens_reasoning(prompt_ids)
        parsed = parse_completion(list(token_ids), self.vocabulary, in_reasoning=in_reasoning)
        reasons = in_reasoning or bool(parsed.reasoning)
        return ToolCallSpec.from_openai(body, thinking=reasons), in_reasoning

    def _alternatives(self, likeliest: Likeliest) -> list[Alternative]:
        first = sorted(likeliest.items(), key=lambda item: -item[1])[:_ALTERNATIVES]
        return [Alternative(self.vocabulary.decode([token]), _probability(value)) for token, value in first]

    def _shown(self, position: int, place: Site, wanted: "_Wanted", written: int) -> WantedToken:
        text = self.vocabulary.decode([wanted.token])
        if wanted.token == written:
            return WantedToken(position, *place, text, None, None, None)
        probability, forbidden = round(wanted.probability, 6), round(wanted.forbidden, 6)
        return WantedToken(position, *place, text, self.vocabulary.decode([written]), probability, forbidden)


class _Mask(NamedTuple):
    allowed: npt.NDArray[np.bool_]  # [token ids]
    call: int  # the number of calls before this token
    intent: Intent | None  # the condition for making the call
    has_declined: bool


class _Wanted(NamedTuple):
    """A step's likeliest forbidden token, its probability, and the total probability of all forbidden tokens."""

    token: int
    is_overridden: bool  # True if it is the likeliest of all tokens, or the turn contains it
    probability: float = 0.0
    forbidden: float = 0.0


def _masks(compiled: CompiledToolCalls, token_ids: Sequence[int], *, in_reasoning: bool) -> Iterator[_Mask]:
    """Yield the mask at each token, until a mask forbids its token, or the turn ends."""
    matcher = compiled.matcher(in_reasoning=in_reasoning)
    bitmask = allocate_bitmask(rows=1, size=compiled.vocabulary.size)
    for token_id in token_ids:
        if matcher.is_terminated():
            return
        matcher.fill_bitmask(bitmask, row=0)
        allowed = np.unpackbits(bitmask.view(np.uint8), bitorder="little").astype(bool)
        mask = _Mask(allowed, matcher.num_calls, matcher.intent(), matcher.has_declined)
        is_declined = mask.intent is not None and mask.intent.closing == token_id
        allowed[token_id] = (allowed[token_id] or is_declined) and matcher.accept_tokens([token_id])
        yield mask
        if not allowed[token_id]:
            return


def _probability(logarithm: float) -> float:
    return exp(min(0.0, logarithm))


def _forbidden(likeliest: Likeliest, allowed: npt.NDArray[np.bool_]) -> _Wanted | None:
    """Return the likeliest token that the mask forbids; None if it forbids none of the given tokens."""
    forbidden = {token: _probability(value) for token, value in likeliest.items() if not allowed[token]}
    if not forbidden:
        return None
    token = max(forbidden, key=likeliest.__getitem__)
    is_overridden = likeliest[token] >= max(likeliest.values())
    return _Wanted(token, is_overridden, forbidden[token], min(1.0, sum(forbidden.values())))
