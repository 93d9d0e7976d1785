"""The engines that the part ``vllm`` starts, the most telling first."""

from dataclasses import dataclass
from typing import Any, Literal

Route = Literal["structured_output", "logits_processor"]
Drafts = Literal["none", "grammar", "ngram", "ngram_gpu"]

_DRAFT_TOKENS = 4
PROCESSOR = "constrained_k2.vllm_plugin:KimiK2LogitsProcessor"
PROPOSER = "constrained_k2.vllm_plugin.GrammarProposer"


@dataclass(frozen=True, slots=True)
class EngineCase:
    """One engine.

    Attributes:
        v2: vLLM's V2 model runner; else V1.
        route: The process that computes masks.
        graphs: CUDA graphs; else eager.
        asynchronous: Asynchronous scheduling is asked for; beside drafts it is left to vLLM's configuration.
        drafts: The method of speculative decoding.
        timed: Steps a second are measured, beside validity.
    """

    v2: bool
    route: Route
    graphs: bool = True
    asynchronous: bool = True
    drafts: Drafts = "none"
    timed: bool = False

    def __str__(self) -> str:
        drafts = "" if self.drafts == "none" else f", {self.drafts} drafts"
        parts = ("V2" if self.v2 else "V1", self.route, "CUDA graphs" if self.graphs else "eager")
        return f"{', '.join(parts)}, {'asynchronous' if self.asynchronous else 'synchronous'}{drafts}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that vLLM reads."""
        return {"VLLM_USE_V2_MODEL_RUNNER": str(int(self.v2)), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}

    @property
    def flags(self) -> dict[str, Any]:
        """The arguments of ``vllm.LLM``."""
        found: dict[str, Any] = {
            "enforce_eager": not self.graphs,
            # A random model means none of its calls.
            "additional_config": {"constrained_k2": {"route": self.route, "undeclared_calls": "nearest"}},
        }
        if not (self.asynchronous and self.drafts != "none"):
            found["async_scheduling"] = self.asynchronous  # beside drafts vLLM refuses it, or decides itself
        if self.route == "logits_processor":
            found["logits_processors"] = [PROCESSOR]
        if self.drafts == "grammar":
            method: dict[str, Any] = {"method": "custom_class", "model": PROPOSER}
        elif self.drafts != "none":
            method = {"method": self.drafts, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
        else:
            return found
        return found | {"speculative_config": method | {"num_speculative_tokens": _DRAFT_TOKENS}}


ENGINES = (
    EngineCase(v2=False, route="structured_output", timed=True),
    EngineCase(v2=True, route="logits_processor", timed=True),
    EngineCase(v2=True, route="structured_output", timed=True),
    EngineCase(v2=False, route="logits_processor", timed=True),
    EngineCase(v2=False, route="structured_output", drafts="grammar", asynchronous=False),
    EngineCase(v2=True, route="logits_processor", drafts="ngram", asynchronous=False),
    EngineCase(v2=True, route="logits_processor", graphs=False),
    EngineCase(v2=False, route="structured_output", graphs=False, asynchronous=False),
    EngineCase(v2=True, route="logits_processor", drafts="ngram_gpu"),
    EngineCase(v2=False, route="structured_output", drafts="ngram", asynchronous=False),
    EngineCase(v2=True, route="logits_processor", asynchronous=False),
    EngineCase(v2=False, route="logits_processor", graphs=False, asynchronous=False),
    EngineCase(v2=True, route="structured_output", graphs=False, asynchronous=False),
    EngineCase(v2=True, route="structured_output", drafts="ngram_gpu"),
)
"""The engines, in the order in which they run until the time ends."""

UNSUPPORTED = (
    ("V2, grammar drafts", "vLLM's V2 runner takes no proposer class (method custom_class)"),
    ("V1, logits_processor, drafts", "vLLM's V1 runner takes no logits processors under speculative decoding"),
)
"""Engines that vLLM 0.32 does not start, each with vLLM's reason."""
