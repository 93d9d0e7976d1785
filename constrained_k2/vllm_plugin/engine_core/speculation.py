"""Decides from a server's flags whether, and how far, the grammar drafts tokens."""

from typing import Any, NamedTuple

from constrained_k2.vllm_plugin.shared.flags import PACKAGE
from constrained_k2.vllm_plugin.shared.settings import settings_in

_LOOKUPS = ("ngram", "ngram_gpu", "custom_class", "suffix")
"""vLLM's methods without a model."""

_MODELS = ("draft_model", "eagle", "eagle3", "mtp")
"""vLLM's methods whose model proposes each token after the one before."""


class GrammarDrafting(NamedTuple):
    """The grammar's part in speculative decoding.

    Attributes:
        limit: The most draft tokens of a request and step; 0 where the grammar does not draft.
        beside_model: Whether a model drafts too.
    """

    limit: int = 0
    beside_model: bool = False


def grammar_drafting(vllm_config: Any) -> GrammarDrafting:
    """The grammar's part in a server's speculative decoding.

    The workers must read the drafts of the schedule, as the V1 model runner does under synchronous scheduling, and
    verify them as if they were certain. With ``draft_sample_method`` of ``probabilistic`` vLLM verifies drafts by the
    draft model's probabilities, which belong to the model's own tokens, and with adaptive verification by its
    confidence in them.
    """
    speculative = vllm_config.speculative_config
    if speculative is None or not settings_in(vllm_config).drafts:
        return GrammarDrafting()
    if vllm_config.use_v2_model_runner or vllm_config.scheduler_config.async_scheduling:
        return GrammarDrafting()
    beside_model = speculative.method in _MODELS
    if beside_model and (
        speculative.draft_sample_method == "probabilistic" or speculative.enable_adaptive_verification
    ):
        return GrammarDrafting()
    if not beside_model and speculative.method not in _LOOKUPS:
        return GrammarDrafting()
    return GrammarDrafting(int(vllm_config.num_speculative_tokens), beside_model)


def names_our_proposer(vllm_config: Any) -> bool:
    """True if our proposer is what the server speculates with."""
    return str(getattr(vllm_config.speculative_config, "model", None)).startswith(PACKAGE)
