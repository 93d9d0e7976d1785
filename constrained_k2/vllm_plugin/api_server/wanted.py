"""Finds out what a declined call was meant to be, by letting the model write its name once, unconstrained."""

from collections.abc import Sequence
from math import exp
from typing import Any, NamedTuple

from vllm import SamplingParams

from constrained_k2.parsing import ToolCallParser
from constrained_k2.parsing.events import CallDeclined
from constrained_k2.vllm_plugin.flags import XARGS_KEY
from constrained_k2.vllm_plugin.settings import OFF
from constrained_k2.vocabulary.vocabulary import Vocabulary

_TOKENS = 24  # of a name, at most


class WantedCall(NamedTuple):
    """The function that the model meant, and the probability of the token that the closing token replaced."""

    name: str
    probability: float


async def wanted_call(engine: Any, output: Any, token_ids: Sequence[int], vocabulary: Vocabulary) -> WantedCall | None:
    """Ask the engine for the name that the declined call was to have; None if none was declined, or no token comes.

    Args:
        engine: vLLM's client of the engine.
        output: The last ``RequestOutput`` of the request.
        token_ids: The choice's tokens.
        vocabulary: The model's.
    """
    prompt = list(output.prompt_token_ids or ())
    begun = _before_closing(token_ids, vocabulary, in_reasoning=vocabulary.opens_reasoning(prompt))
    if not prompt or begun is None:
        return None
    written, header = begun
    params = SamplingParams(max_tokens=_TOKENS, temperature=0, logprobs=1, extra_args={XARGS_KEY: OFF})
    name = f"{output.request_id}-wanted"
    tokens = {"prompt_token_ids": [*prompt, *written]}
    answers = [each async for each in engine.generate(tokens, params, name, lora_request=output.lora_request)]
    if not answers or not answers[-1].outputs[0].token_ids:
        return None
    found = answers[-1].outputs[0]
    first, *_ = ids = found.token_ids
    markers = vocabulary.format
    ends = next((at for at, token in enumerate(ids) if not vocabulary.is_ordinary(token)), len(ids))
    meant = header.removeprefix(markers.header_begin) + vocabulary.decode(ids[:ends])
    meant = meant.removeprefix(markers.header_begin).partition(markers.header_index)[0]
    return WantedCall(meant, round(exp(found.logprobs[0][first].logprob), 4))


def _before_closing(
    token_ids: Sequence[int], vocabulary: Vocabulary, *, in_reasoning: bool
) -> tuple[Sequence[int], str] | None:
    """The tokens before the one that closed the section, and what they hold of the call's header."""
    parser = ToolCallParser(vocabulary, in_reasoning=in_reasoning)
    for at, token in enumerate(token_ids):
        for event in parser.feed([token]):
            if isinstance(event, CallDeclined):
                return token_ids[:at], event.text
    return None
