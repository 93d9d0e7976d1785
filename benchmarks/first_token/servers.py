"""The servers that are compared, and their models: real vocabulary, prompts of tens of thousands of tokens."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from constrained_k2.evaluation.server import BACKEND_FLAGS, CONSTRAINED_FLAGS, STRICT_FLAGS, WITHOUT_PLUGIN
from constrained_k2.testing import build_model

STOCK_FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "kimi_k2")
_FLAGS = (
    "--max-model-len=131072",
    "--enable-chunked-prefill",  # no request has a seed, beside which the CPU engine does not survive chunks
    "--max-num-batched-tokens=1024",
    "--max-num-seqs=4",
    "--no-enable-prefix-caching",
)
_WINDOW = 64  # tokens


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm.

    Attributes:
        name: Its row in the table.
        server: A key of :data:`SERVERS`.
        is_constrained: A call is required, and the server makes its grammar of the tools; else the turn is free.
    """

    name: str
    server: str
    is_constrained: bool


_PATIENT = {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "86400"}  # vLLM's 300 end while a server is suspended within a step

SERVERS: Mapping[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "stock": (STOCK_FLAGS, WITHOUT_PLUGIN | _PATIENT),
    "structured_output": (BACKEND_FLAGS, _PATIENT),
    "logits_processor": (CONSTRAINED_FLAGS, _PATIENT),
    "strict": (STRICT_FLAGS, WITHOUT_PLUGIN | _PATIENT),
}
"""Name -> flags and environment."""

FREE = "unconstrained"
ARMS = (
    Arm(FREE, "stock", is_constrained=False),
    Arm("ours, structured-output route", "structured_output", is_constrained=True),
    Arm("ours, logits-processor route", "logits_processor", is_constrained=True),
    Arm("vLLM's strict level (xgrammar's tag)", "strict", is_constrained=True),
)


def flags_of(server: str) -> tuple[str, ...]:
    """Return all flags of a server."""
    return (*_FLAGS, *SERVERS[server][0])


def write_model(directory: Path, tokenizer: Path | None) -> Path:
    """Write a random model whose prompts may be long.

    Args:
        directory: Where it is written.
        tokenizer: The directory of the real vocabulary; None for a small one.
    """
    model = build_model(directory / "kimi", arch="llama", tokenizer=tokenizer)
    config = json.loads((model / "config.json").read_bytes())
    # Attention to a window makes the time of a long prompt linear: whole attention takes a CPU minutes.
    config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": _WINDOW}
    (model / "config.json").write_text(json.dumps(config))
    return model
