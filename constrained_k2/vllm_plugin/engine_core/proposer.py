"""Speculative decoding by the grammar alone, without a draft model.

``--speculative-config '{"method": "custom_class", "model": "constrained_k2.vllm_plugin.GrammarProposer",
"num_speculative_tokens": 8}'``, on the V1 model runner. vLLM asks a proposer in the workers, which know tokens but no
grammars. The matchers are in the engine core, so the drafts are made there, where vLLM has drafts checked against the
grammar: :meth:`.structured_output.ConstrainedOutputManager.validate_tokens`. This class proposes nothing.
"""

from typing import Any

from constrained_k2.errors import InvalidRequest
from constrained_k2.vllm_plugin.engine_core.speculation import grammar_drafting
from constrained_k2.vllm_plugin.shared.flags import TOOL_PARSER_NAME
from constrained_k2.vllm_plugin.shared.route import route_of


class GrammarProposer:
    """Proposes nothing; where it is configured, the engine core, which must constrain, drafts by the grammars."""

    def __init__(self, vllm_config: Any) -> None:
        if route_of(vllm_config) != "structured_output" or not grammar_drafting(vllm_config).limit:
            raise InvalidRequest(
                "the grammar drafts only where the engine core constrains",
                "--speculative-config",
                f"Use it with --tool-call-parser {TOOL_PARSER_NAME}, without our --logits-processors, and leave the "
                "setting drafts on",
            )

    def load_model(self, target: Any) -> None:
        """Nothing to load; some of vLLM's model runners ask for it."""

    def propose(self, sampled_token_ids: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        """Return one empty list per request: the engine core drafts."""
        return [[] for _ in sampled_token_ids]
