"""Explains an answer of a vLLM server: which tokens the constraint overrode.

The answer is sent back without the constraint, for the probabilities of its tokens.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.evaluation.answer import ChatAnswer, NoAnswer
from constrained_k2.evaluation.client import Client
from constrained_k2.evaluation.sample import UNCONSTRAINED
from constrained_k2.explain.turn import LIKELIEST, TurnExplainer
from constrained_k2.explain.view import TurnView


async def explained(
    client: Client, explainer: TurnExplainer, model: str, body: Mapping[str, Any], answer: ChatAnswer
) -> tuple[TurnView, tuple[float, ...]]:
    """Explain the answer to a chat request that asked for token ids; any front end of vLLM gives what is needed.

    Returns the turn with its overrides, and the logarithm of each token's probability without the constraint.

    Raises:
        NoAnswer: The server gives no token ids or no probabilities, or the turn is in another vocabulary.
        InvalidRequest: A field of the request is invalid.
    """
    prompt_ids, token_ids = answer.prompt_ids, answer.token_ids
    if not prompt_ids or not token_ids:
        raise NoAnswer("invalid_answer", "the server returns no token ids, as vLLM does")
    likeliest: list[dict[int, float]] = []
    if all(0 <= token < explainer.vocabulary.size for token in token_ids):
        ids, fields = (*prompt_ids, *token_ids), dict(UNCONSTRAINED)
        likeliest = await client.likeliest(model, ids, len(token_ids), fields, top=LIKELIEST)
    if not likeliest or any(not 0 <= token < explainer.vocabulary.size for each in likeliest for token in each):
        raise NoAnswer("invalid_answer", "the answer has tokens beyond the vocabulary: another tokenizer was named")
    try:
        spec, in_reasoning = explainer.spec_of(dict(body), prompt_ids, token_ids)
        view = await asyncio.to_thread(explainer.explain, spec, token_ids, likeliest, in_reasoning=in_reasoning)
    except ConstrainedK2Error as error:
        raise NoAnswer("invalid_answer", f"the request has no constraint: {error}") from error
    return view, tuple(round(each[token], 5) for each, token in zip(likeliest, token_ids, strict=True))
