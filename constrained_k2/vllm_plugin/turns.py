"""From a request's sampling parameters to its turn, in the engine."""

from typing import Any, NamedTuple

from vllm import SamplingParams

from constrained_k2.bitmask import TokenSet
from constrained_k2.closing import Closing
from constrained_k2.compiler import CompiledToolCalls, Compiler
from constrained_k2.counters import engine_counters
from constrained_k2.matcher import ToolCallMatcher
from constrained_k2.vllm_plugin.admission import reserve_in, spec_in
from constrained_k2.vllm_plugin.settings import settings_in
from constrained_k2.vllm_plugin.turn import Turn
from constrained_k2.vocabulary import Vocabulary


class Prompt(NamedTuple):
    """What is read of a request's prompt.

    Attributes:
        length: Its tokens.
        last_id: The last one; None if there is none, or if it is given as embeddings.
    """

    length: int
    last_id: int | None


class TurnMaker:
    """Compiles requests over the served model's vocabulary.

    Args:
        vllm_config: vLLM's ``VllmConfig``.

    Attributes:
        vocabulary: The served model's.
        settings: The operator's.
        stop: The set of tokens by which a failed request ends.

    Raises:
        FormatMismatch: The served model's tokenizer is not Kimi K2's.
    """

    def __init__(self, vllm_config: Any) -> None:
        model = vllm_config.model_config
        self.vocabulary = Vocabulary.from_pretrained(
            model.tokenizer,
            size=model.get_vocab_size(),
            revision=model.tokenizer_revision,
            trust=model.trust_remote_code,
        )
        self.settings = settings_in(vllm_config)
        self._closing = Closing(self.vocabulary)
        self._max_model_len: int = model.max_model_len
        self.stop = TokenSet((self.vocabulary.format.turn_end,), self.vocabulary.size)
        self._compiler = Compiler(
            self.vocabulary,
            self.settings.engines[0],
            policy=self.settings.policy,
            cache_bytes=self.settings.cache_mib << 20,
            counts=engine_counters.grammars,
            mask_cache_bytes=self.settings.mask_cache_mib << 20,
        )

    def compile(self, params: SamplingParams) -> CompiledToolCalls | None:
        """The request's grammar; None for a request that is not constrained. Tools are compiled when they are called.

        Args:
            params: The request's.

        Raises:
            ConstrainedK2Error: Its spec cannot be read; admission has let through what it should not have.
        """
        spec = spec_in(params.extra_args)
        return None if spec is None else self._compiler.compile(spec, check=False)

    def matcher(self, compiled: CompiledToolCalls, prompt: Prompt, params: SamplingParams) -> ToolCallMatcher:
        """A turn's matcher at its start.

        Args:
            compiled: The request's grammar.
            prompt: What is known of the prompt: reasoning has begun if it ends in ``<think>``.
            params: The request's.

        Raises:
            InvalidRequest: What is kept for ending a call is no number; admission has let through what it should not.
        """
        matcher = compiled.matcher(in_reasoning=prompt.last_id == self.vocabulary.format.think_begin)
        reserve = reserve_in(params.extra_args, self.settings.close)
        if reserve:
            # vLLM ends a request at whichever of the two comes first.
            left = self._max_model_len - prompt.length
            self._closing.close(matcher, left if params.max_tokens is None else min(params.max_tokens, left), reserve)
        return matcher

    def start(self, compiled: CompiledToolCalls, prompt: Prompt, params: SamplingParams) -> Turn:
        """The turn at its start.

        Args:
            compiled: The request's grammar.
            prompt: As for :meth:`matcher`.
            params: The request's.
        """
        return Turn(self.matcher(compiled, prompt, params), self.stop, guarded=_may_forbid(params))

    def failed(self, error: Exception) -> Turn:
        """A turn for a request that cannot be constrained: it ends at once."""
        turn = Turn(None, self.stop, guarded=True)
        turn.fail(repr(error))
        return turn


def _may_forbid(params: SamplingParams) -> bool:
    """Whether a request's own parameters may give a token -inf, and with it all that a mask allows.

    ``min_tokens`` forbids the stops, which ``stop_token_ids`` may add any token to; ``logit_bias`` is bounded in the
    servers' protocols, but not where vLLM is called in process.
    """
    return bool(params.min_tokens or params.logit_bias)
