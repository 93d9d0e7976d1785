"""Makes a request's matcher from its sampling parameters, in the engine."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vllm import SamplingParams

from constrained_k2.compiler.compiler import CompiledToolCalls, Compiler
from constrained_k2.turn.finish_budget import FinishBudget
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.turn.thinking_budget import ThinkingBudget
from constrained_k2.turn.token_restriction import TokenRestriction
from constrained_k2.vllm_plugin.shared.constraint import constraint_in, finish_reserve_in
from constrained_k2.vllm_plugin.shared.counters import engine_counters
from constrained_k2.vllm_plugin.shared.server import vocabulary_of_model
from constrained_k2.vllm_plugin.shared.settings import settings_in
from constrained_k2.vllm_plugin.shared.token_limits import token_limits_in
from constrained_k2.vocabulary.bitmask import TokenSet

PROMPT_END = 8
"""The number of a prompt's last tokens that show whether it opens reasoning, in any tokenization of the tag."""


class PromptInfo(NamedTuple):
    """A prompt's length in tokens, and its last :data:`PROMPT_END` tokens; none for one of embeddings."""

    length: int
    end: Sequence[int]


class MatcherFactory:
    """Compiles requests over the served model's vocabulary; ``stop`` holds the token by which a failed request ends."""

    def __init__(self, vllm_config: Any) -> None:
        model = vllm_config.model_config
        self.vocabulary = vocabulary_of_model(model)
        self.settings = settings_in(vllm_config)
        self._finish_budget = FinishBudget(self.vocabulary)
        self._thinking_budget = ThinkingBudget(self.vocabulary)
        self._max_model_len: int = model.max_model_len
        self.stop = TokenSet((self.vocabulary.format.turn_end,), self.vocabulary.size)
        self._compiler = Compiler(
            self.vocabulary,
            self.settings.engines[0],
            policy=self.settings.strict,
            undeclared_keys=self.settings.undeclared_keys,
            undeclared_calls=self.settings.undeclared_calls,
            call_threshold=self.settings.call_threshold,
            cache_bytes=self.settings.grammar_bytes,
            counts=engine_counters.grammars,
            mask_cache_bytes=self.settings.mask_bytes,
        )

    def compile(self, params: SamplingParams) -> CompiledToolCalls | None:
        """The grammar, whose tools are compiled when they are called; None for a request that is not constrained."""
        constraint = constraint_in(params.extra_args)
        return None if constraint is None else self._compiler.compile(constraint, check=False)

    def matcher(self, compiled: CompiledToolCalls, prompt: PromptInfo, params: SamplingParams) -> ToolCallMatcher:
        """A matcher at the start of the turn. Reasoning has begun if the prompt opens it."""
        matcher = compiled.matcher(in_reasoning=self.vocabulary.opens_reasoning(prompt.end))
        if reserve := finish_reserve_in(params.extra_args, self.settings.finish_reserve):
            left = self._max_model_len - prompt.length  # vLLM ends a request at whichever of the two comes first
            tokens = left if params.max_tokens is None else min(params.max_tokens, left)
            self._finish_budget.apply(matcher, tokens, reserve)
        limits = token_limits_in(params.extra_args)
        if limits.thinking_token_budget is not None:
            self._thinking_budget.apply(matcher, limits.thinking_token_budget)
        if limits.allowed_token_ids is not None or limits.bad_words:
            matcher.limits = TokenRestriction(
                self.vocabulary.size, limits.allowed_token_ids, limits.bad_words, engine_counters.count_ignored_limit
            )
        return matcher


FAILED = object()
"""The result of a step that raised."""


class GuardedMatcher(ABC):
    """One constrained request inside the engine, on either route; ``matcher`` is None once it has failed.

    An exception that leaves a grammar or a logits processor would end the whole engine.
    """

    def __init__(self, matcher: ToolCallMatcher | None, stop: TokenSet) -> None:
        self.matcher = matcher
        self._stop = stop

    def attempt(self, step: Callable[..., Any], *args: Any) -> Any:
        """The result of a step, or :data:`FAILED`."""
        try:
            return step(*args)
        except (KeyboardInterrupt, SystemExit):  # vLLM's own way to end the engine
            raise
        except BaseException as error:  # noqa: BLE001 - see the class; PyO3 raises Rust's panics as BaseException
            self.failed(step, error)
        return FAILED

    @abstractmethod
    def failed(self, step: Callable[..., Any], error: BaseException) -> None:
        """Decide what a failed step means for the request."""
