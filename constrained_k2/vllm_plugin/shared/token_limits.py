"""Carries a client's own limits on tokens from the sampling parameters to the request's matcher.

The limits are the thinking budget, the allowed tokens and the bad words. vLLM applies them to the logits on their own:
together with a mask they may leave no token at all, and the end of reasoning that vLLM forces may fall into a call. So
the front end takes them off a constrained request once vLLM has checked them, and the request's matcher applies them to
its masks.
"""

from copy import copy
from typing import Any

import msgspec
from vllm import SamplingParams

_KEY = "constrained_k2_token_limits"
"""The key in ``extra_args``. A client's value of this name is dropped."""

_NO_LIMIT = 1 << 31  # tokens of reasoning; more than any model's length


class TokenLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits of one request, as vLLM's ``SamplingParams`` name and document them."""

    thinking_token_budget: int | None = None
    allowed_token_ids: tuple[int, ...] | None = None  # distinct
    bad_words: tuple[tuple[int, ...], ...] = ()  # each as its tokens


def take_thinking_budget(params: SamplingParams) -> SamplingParams:
    """A copy of the parameters, with the thinking budget in ``extra_args``; for before vLLM checks them.

    vLLM refuses a thinking budget on a server without a reasoning parser.
    """
    taken, budget = copy(params), params.thinking_token_budget
    taken.thinking_token_budget = None
    _carry(taken, TokenLimits(thinking_token_budget=None if budget is None else min(budget, _NO_LIMIT)))
    return taken


def take_token_ids(params: SamplingParams) -> None:
    """Move allowed tokens and bad words into ``extra_args``, in place; for after vLLM has checked and encoded them."""
    allowed, bad_words = params.allowed_token_ids, params.bad_words_token_ids
    if allowed is None and not bad_words:
        return
    limits = msgspec.structs.replace(
        token_limits_in(params.extra_args),
        allowed_token_ids=None if allowed is None else tuple(set(allowed)),
        bad_words=tuple(map(tuple, bad_words or ())),
    )
    params.allowed_token_ids = params.bad_words = params._bad_words_token_ids = None  # noqa: SLF001 - no setter
    _carry(params, limits)


def drop_limits(params: SamplingParams) -> None:
    """Drop the limits that a client wrote into a request itself; for one that is not masked and needs none."""
    if params.extra_args and _KEY in params.extra_args:
        _carry(params, TokenLimits())


def token_limits_in(extra_args: dict[str, Any] | None) -> TokenLimits:
    """The limits that a request carries."""
    return msgspec.convert((extra_args or {}).get(_KEY, {}), TokenLimits)


def _carry(params: SamplingParams, limits: TokenLimits) -> None:
    extra = {key: value for key, value in (params.extra_args or {}).items() if key != _KEY}
    values = msgspec.to_builtins(limits)
    params.extra_args = extra | {_KEY: values} if values else extra  # the caller's own dictionary is left alone
