"""Finds out what a declined call was meant to be, by letting the model write its name once, unconstrained."""

from collections.abc import Sequence
from math import exp
from typing import Any, NamedTuple

from vllm import SamplingParams

from constrained_k2.formats.kimi_k3 import MEDIA_PAD, unescape
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


async def wanted_call(
    engine: Any, request: Any, output: Any, token_ids: Sequence[int], vocabulary: Vocabulary
) -> WantedCall | None:
    """Ask the engine for the name that the declined call was to have; None if none was declined, or no token comes.

    Args:
        engine: vLLM's client of the engine.
        request: The chat request.
        output: The last ``RequestOutput`` of the request.
        token_ids: The choice's tokens.
        vocabulary: The model's.
    """
    prompt = list(output.prompt_token_ids or ())
    begun = _before_closing(token_ids, vocabulary, in_reasoning=vocabulary.opens_reasoning(prompt))
    if not prompt or begun is None or vocabulary.special_tokens.get(MEDIA_PAD) in prompt:
        return None  # its images are gone
    written, header = begun
    end = vocabulary.format.argument_begin
    params = SamplingParams(
        max_tokens=_TOKENS, temperature=0, logprobs=1, stop_token_ids=[end], extra_args={XARGS_KEY: OFF}
    )
    tokens: dict[str, Any] = {"prompt_token_ids": [*prompt, *written]}
    if request.cache_salt is not None:
        tokens["cache_salt"] = request.cache_salt
    options = {"lora_request": output.lora_request, "priority": request.priority}
    answers = [each async for each in engine.generate(tokens, params, f"{output.request_id}-wanted", **options)]
    if not answers or not answers[-1].outputs[0].token_ids:
        return None
    found = answers[-1].outputs[0]
    first, *_ = ids = found.token_ids
    ends = next((at for at, token in enumerate(ids) if not vocabulary.is_ordinary(token)), len(ids))
    name = _name_in(header + vocabulary.decode(ids[:ends]), vocabulary)
    return WantedCall(name, round(exp(found.logprobs[0][first].logprob), 4))


def _name_in(header: str, vocabulary: Vocabulary) -> str:
    """The function that a call's header names; it may hold any text."""
    markers = vocabulary.format
    name, separator, index = header.removeprefix(markers.header_begin).rpartition(markers.header_index)
    is_whole = separator and index.removesuffix(markers.header_end).isdecimal()
    name = name if is_whole else f"{name}{separator}{index}"
    return unescape(name) if markers.argument_encoding == "xtml" else name


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
