"""From a request's sampling parameters to its turn, in the engine."""

from typing import Any

from vllm import SamplingParams

from constrained_k2.bitmask import TokenSet
from constrained_k2.compiler import CompiledToolCalls, Compiler
from constrained_k2.counters import engine_counters
from constrained_k2.matcher import ToolCallMatcher
from constrained_k2.vllm_plugin.admission import settings_in, spec_in
from constrained_k2.vllm_plugin.turn import Turn
from constrained_k2.vocabulary import Vocabulary


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
        self.stop = TokenSet((self.vocabulary.format.turn_end,), self.vocabulary.size)
        self._compiler = Compiler(
            self.vocabulary, self.settings.engines[0], policy=self.settings.policy, counts=engine_counters.grammars
        )

    def compile(self, params: SamplingParams, *, check: bool = False) -> CompiledToolCalls | None:
        """The request's grammar; None for a request that is not constrained.

        Args:
            params: The request's.
            check: Whether its tools are compiled now, rather than each when it is called.

        Raises:
            ConstrainedK2Error: Its spec cannot be read, or with ``check`` a tool not be compiled; admission has let
                through what it should not have.
        """
        spec = spec_in(params.extra_args)
        return None if spec is None else self._compiler.compile(spec, check=check)

    def matcher(self, compiled: CompiledToolCalls, last_prompt_id: int | None) -> ToolCallMatcher:
        """A turn's matcher at its start.

        Args:
            compiled: The request's grammar.
            last_prompt_id: The prompt's last token: reasoning has begun if it is ``<think>``.
        """
        return compiled.matcher(in_reasoning=last_prompt_id == self.vocabulary.format.think_begin)

    def start(self, compiled: CompiledToolCalls, last_prompt_id: int | None, params: SamplingParams) -> Turn:
        """The turn at its start.

        Args:
            compiled: The request's grammar.
            last_prompt_id: As for :meth:`matcher`.
            params: The request's.
        """
        return Turn(self.matcher(compiled, last_prompt_id), self.stop, guarded=_may_forbid(params))

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
