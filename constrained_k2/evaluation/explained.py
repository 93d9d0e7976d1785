"""Explains an answer of a vLLM server: which tokens the constraint overrode.

The answer is sent back without the constraint, for the probabilities of its tokens.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.evaluation.answer import ChatAnswer, NoAnswer
from constrained_k2.evaluation.client import Client
from constrained_k2.evaluation.sample import UNCONSTRAINED
from constrained_k2.explain.turn import LIKELIEST, TurnExplainer
from constrained_k2.explain.view import TurnView


class Explained(NamedTuple):
    """A turn with its overrides, and the logarithm of each token's probability without the constraint."""

    view: TurnView
    logprobs: tuple[float, ...]


async def explained(
    client: Client, explainer: TurnExplainer, model: str, body: Mapping[str, Any], answer: ChatAnswer
) -> Explained:
    """Explain the answer to a chat request that asked for token ids; any front end of vLLM gives what is needed.

    Raises:
        NoAnswer: The server gives no token ids or no probabilities, or the turn is in another vocabulary.
        InvalidRequest: A field of the request is invalid.
    """
    prompt_ids, token_ids = _ids_of(answer)
    _check(token_ids, explainer)
    likeliest, logprobs = await sent_back(client, model, answer, top=LIKELIEST)
    _check((token for each in likeliest for token in each), explainer)
    try:
        spec, in_reasoning = explainer.spec_of(dict(body), prompt_ids, token_ids)
        view = await asyncio.to_thread(explainer.explain, spec, token_ids, likeliest, in_reasoning=in_reasoning)
    except ConstrainedK2Error as error:
        raise NoAnswer("invalid_answer", f"the request has no constraint: {error}") from error
    return Explained(view, logprobs)


async def sent_back(
    client: Client, model: str, answer: ChatAnswer, *, top: int = 0
) -> tuple[list[dict[int, float]], tuple[float, ...]]:
    """Return what :meth:`Client.likeliest` gives for an answer's tokens, and each token's own logarithm.

    Raises:
        NoAnswer: The server gives no token ids or no probabilities.
    """
    prompt_ids, token_ids = _ids_of(answer)
    ids = (*prompt_ids, *token_ids)
    found = await client.likeliest(model, ids, len(token_ids), dict(UNCONSTRAINED), top=top)
    return found, tuple(round(each[token], 5) for each, token in zip(found, token_ids, strict=True))


def _ids_of(answer: ChatAnswer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the token ids of the prompt and of the turn; raises ``NoAnswer`` if the server gives none."""
    if not answer.prompt_ids or not answer.token_ids:
        raise NoAnswer("invalid_answer", "the server returns no token ids, as vLLM does")
    return answer.prompt_ids, answer.token_ids


def _check(token_ids: Iterable[int], explainer: TurnExplainer) -> None:
    if any(not 0 <= token < explainer.vocabulary.size for token in token_ids):
        raise NoAnswer("invalid_answer", "the answer has tokens beyond the vocabulary: another tokenizer was named")
