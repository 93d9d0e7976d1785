"""From a request's sampling parameters to its turn, in the engine."""

from typing import Any

from vllm import SamplingParams

from constrained_k2.bitmask import TokenSet
from constrained_k2.compiler import CompiledToolCalls, Compiler
from constrained_k2.vllm_plugin.admission import settings_in, spec_in
from constrained_k2.vllm_plugin.turn import Turn
from constrained_k2.vocabulary import Vocabulary


class TurnMaker:
    """Compiles requests over the served model's vocabulary.

    Args:
        vllm_config: vLLM's ``VllmConfig``.

    Attributes:
        vocabulary: The served model's.

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
        settings = settings_in(vllm_config)
        self._compiler = Compiler(self.vocabulary, settings.engines[0], policy=settings.policy)
        self._stop = TokenSet((self.vocabulary.format.turn_end,), self.vocabulary.size)

    def compile(self, params: SamplingParams) -> CompiledToolCalls | None:
        """The request's grammar; None for a request that is not constrained.

        Raises:
            ConstrainedK2Error: Its spec cannot be read; admission has let through what it should not have.
        """
        spec = spec_in(params.extra_args)
        return None if spec is None else self._compiler.compile(spec, check=False)

    def start(self, compiled: CompiledToolCalls, last_prompt_id: int | None, params: SamplingParams) -> Turn:
        """The turn at its start.

        Args:
            compiled: The request's grammar.
            last_prompt_id: The prompt's last token: reasoning has begun if it is ``<think>``.
            params: The request's.
        """
        in_reasoning = last_prompt_id == self.vocabulary.format.think_begin
        matcher = compiled.matcher(in_reasoning=in_reasoning)
        return Turn(matcher, self._stop, guarded=_may_forbid(params))

    def failed(self, error: Exception) -> Turn:
        """A turn for a request that cannot be constrained: it ends at once."""
        turn = Turn(None, self._stop, guarded=True)
        turn.fail(repr(error))
        return turn


def _may_forbid(params: SamplingParams) -> bool:
    """Whether a request's own parameters may give a token -inf, and with it all that a mask allows.

    ``min_tokens`` forbids the stops, which ``stop_token_ids`` may add any token to; ``logit_bias`` is bounded in the
    servers' protocols, but not where vLLM is called in process.
    """
    return bool(params.min_tokens or params.logit_bias)
