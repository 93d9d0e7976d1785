"""Decides whether the grammar proposes draft tokens, and which to run: its own or a draft model's.

vLLM asks a proposer in the workers, which know tokens but no grammars. The matchers are in the engine core, so their
drafts are made there, where vLLM has drafts checked against the grammar:
:meth:`.structured_output.ConstrainedOutputManager.validate_tokens`.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from constrained_k2.errors import InvalidRequest
from constrained_k2.vllm_plugin.shared.flags import PACKAGE, TOOL_PARSER_NAME
from constrained_k2.vllm_plugin.shared.route import route_of
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


def refuse_idle_proposer(vllm_config: Any) -> None:
    """Refuse a server that names our proposer, but whose grammars do not draft."""
    is_ours = str(getattr(vllm_config.speculative_config, "model", None)).startswith(PACKAGE)
    if is_ours and (route_of(vllm_config) != "structured_output" or not grammar_drafting(vllm_config).limit):
        raise InvalidRequest(
            "the grammar cannot draft alone on this server",
            "--speculative-config",
            f"Use {PACKAGE}.GrammarProposer with --tool-call-parser {TOOL_PARSER_NAME}, without our "
            "--logits-processors, and leave the setting drafts on. Its method is custom_class",
        )


class GrammarProposer:
    """The proposer of a server without a draft model; it proposes nothing, since the engine core drafts.

    ``--speculative-config '{"method": "custom_class", "model": "constrained_k2.vllm_plugin.GrammarProposer",
    "num_speculative_tokens": 8}'``, on the V1 model runner.
    """

    def __init__(self, vllm_config: Any) -> None:
        refuse_idle_proposer(vllm_config)

    def load_model(self, target: Any) -> None:
        """Nothing to load; some of vLLM's model runners ask for it."""

    def propose(self, sampled_token_ids: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        """Return one empty list per request."""
        return [[] for _ in sampled_token_ids]


_KEPT = 0.98  # of the older scores, with each comparison: some fifty comparisons count


class _Compared(NamedTuple):
    length: int  # of the request before the drafts, prompt included
    model: tuple[int, ...]
    grammar: tuple[int, ...]


class DraftScores:
    """The scores of a server's two sources: how many draft tokens each had right where they differed."""

    def __init__(self) -> None:
        self._model = self._grammar = 0.0
        self._latest: WeakKeyDictionary[object, _Compared] = WeakKeyDictionary()  # of each turn

    def compare(self, turn: object, token_ids: Sequence[int], model: Sequence[int], grammar: Sequence[int]) -> None:
        """Score the drafts of a turn that were compared before, and keep these two until what follows is known.

        Args:
            turn: Stands for the turn; what is kept ends with it.
            token_ids: The tokens of its request, prompt included, without the drafts.
            model: The model's drafts.
            grammar: The grammar's drafts at the same position.
        """
        before = self._latest.pop(turn, None)
        if before is not None:
            written = token_ids[before.length :]
            self._model = _KEPT * self._model + _same(before.model, written)
            self._grammar = _KEPT * self._grammar + _same(before.grammar, written)
        if _same(model, grammar) < min(len(model), len(grammar)):
            self._latest[turn] = _Compared(len(token_ids), tuple(model), tuple(grammar))

    def better(self, model: Sequence[int], grammar: Sequence[int]) -> Sequence[int]:
        """The drafts of the source that has been better; the longer ones if neither has, or if these only continue."""
        if self._grammar == self._model or _same(model, grammar) == min(len(model), len(grammar)):
            return max(model, grammar, key=len)
        return grammar if self._grammar > self._model else model


def _same(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of tokens that are the same, from the first on."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
