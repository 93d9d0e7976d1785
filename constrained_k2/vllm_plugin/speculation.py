"""Grammar drafts under a server's speculative decoding, by its flags."""

from typing import Any, NamedTuple

from constrained_k2.vllm_plugin.flags import PACKAGE
from constrained_k2.vllm_plugin.settings import settings_in

_LOOKUPS = ("ngram", "custom_class", "suffix")
"""vLLM's methods without a model. vLLM does not schedule asynchronously with them."""

_LOOKUP_ON_DEVICE = "ngram_gpu"
"""vLLM's method without a model that it schedules asynchronously too."""

_MODELS = ("draft_model", "eagle", "eagle3", "mtp")
"""vLLM's methods whose model proposes each token after the one before."""


class GrammarDrafting(NamedTuple):
    """The grammar's part in speculative decoding.

    Attributes:
        limit: The most draft tokens of a request and step; 0 where the grammar does not draft.
        ahead: Whether a step's drafts are made before the step before it has come back: under asynchronous scheduling.
        alone: Whether nothing else drafts.
        beside_model: Whether a model drafts too.
        on_device: Whether the workers do not read the drafts of the schedule, but keep their own: the V2 model runner.
    """

    limit: int = 0
    ahead: bool = False
    alone: bool = False
    beside_model: bool = False
    on_device: bool = False


def grammar_drafting(vllm_config: Any) -> GrammarDrafting:
    """The grammar's part in a server's speculative decoding.

    Drafts may be replaced where they are verified as if they were certain. With ``draft_sample_method`` of
    ``probabilistic`` vLLM verifies them by the draft model's probabilities, which belong to the model's own tokens, and
    with adaptive verification by its confidence in them.
    """
    speculative = vllm_config.speculative_config
    if speculative is None or not settings_in(vllm_config).drafts:
        return GrammarDrafting()
    method, ahead = speculative.method, bool(vllm_config.scheduler_config.async_scheduling)
    on_device = bool(vllm_config.use_v2_model_runner)
    beside_model = method in _MODELS
    if beside_model and (
        speculative.draft_sample_method == "probabilistic" or speculative.enable_adaptive_verification
    ):
        return GrammarDrafting()
    if ahead:
        drafts = (beside_model or method == _LOOKUP_ON_DEVICE) and on_device
        # With pipeline parallelism the ranks before the last one learn tokens too late.
        drafts = drafts and vllm_config.parallel_config.pipeline_parallel_size == 1
    else:
        drafts = beside_model or method in {*_LOOKUPS, _LOOKUP_ON_DEVICE}
    if not drafts:
        return GrammarDrafting()
    return GrammarDrafting(
        int(vllm_config.num_speculative_tokens), ahead, names_our_proposer(vllm_config), beside_model, on_device
    )


def names_our_proposer(vllm_config: Any) -> bool:
    """True if our proposer is what the server speculates with."""
    return str(getattr(vllm_config.speculative_config, "model", None)).startswith(PACKAGE)
