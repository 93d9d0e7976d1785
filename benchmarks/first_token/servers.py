"""The servers that are compared, and their models: real vocabulary, prompts of tens of thousands of tokens."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from constrained_k2.evaluation.server import BACKEND_FLAGS, CONSTRAINED_FLAGS, STRICT_FLAGS, WITHOUT_PLUGIN
from constrained_k2.testing import build_model
from constrained_k2.testing.tokenization_kimi import SPLIT_PATTERN
from constrained_k2.vocabulary.vocabulary import Vocabulary

STOCK_FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "kimi_k2")
_FLAGS = (
    "--max-model-len=131072",
    "--enable-chunked-prefill",  # no request has a seed, beside which the CPU engine does not survive chunks
    "--max-num-batched-tokens=1024",  # so that another stream waits for a part of a long prompt, not for all of it
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
        constrains: ``tools``: a call is required, and the server makes its grammar of the tools. ``grammar``: the
            request brings the grammar. None: free.
        baseline: The free arm whose tokenizer and model are the same.
    """

    name: str
    server: str
    constrains: str | None
    baseline: str


_PATIENT = {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "86400"}  # vLLM's 300 end while a server is suspended within a step

SERVERS: Mapping[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "stock": (STOCK_FLAGS, WITHOUT_PLUGIN | _PATIENT),
    "structured_output": (BACKEND_FLAGS, _PATIENT),
    "logits_processor": (CONSTRAINED_FLAGS, _PATIENT),
    "strict": (STRICT_FLAGS, WITHOUT_PLUGIN | _PATIENT),
    "guidance": ((*STOCK_FLAGS, "--structured-outputs-config", '{"backend": "guidance"}'), WITHOUT_PLUGIN | _PATIENT),
}
"""Name -> flags and environment."""

_FREE, _FREE_FAST = "unconstrained", "unconstrained, fast tokenizer"
ARMS = (
    Arm(_FREE, "stock", None, _FREE),
    Arm("ours, structured-output route", "structured_output", "tools", _FREE),
    Arm("ours, logits-processor route", "logits_processor", "tools", _FREE),
    Arm("vLLM's strict level (xgrammar's tag)", "strict", "tools", _FREE),
    Arm(_FREE_FAST, "guidance", None, _FREE_FAST),
    Arm("vLLM with LLGuidance (whole grammar)", "guidance", "grammar", _FREE_FAST),
)


def flags_of(server: str) -> tuple[str, ...]:
    """Return all flags of a server."""
    return (*_FLAGS, *SERVERS[server][0])


def write_models(directory: Path, tokenizer: Path | None) -> tuple[Path, Path]:
    """Write the random model twice: with Kimi's tokenizer, and with a fast copy of it, which vLLM's LLGuidance needs.

    Args:
        directory: Where they are written.
        tokenizer: The directory of the real vocabulary; None for a small one.
    """
    model = build_model(directory / "kimi", arch="llama", tokenizer=tokenizer)
    config = json.loads((model / "config.json").read_bytes())
    # Attention to a window makes the time of a long prompt linear: whole attention takes a CPU minutes.
    config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": _WINDOW}
    (model / "config.json").write_text(json.dumps(config))
    fast = directory / "fast"
    shutil.copytree(model, fast, ignore=shutil.ignore_patterns("token*", "tiktoken*"))
    _write_fast_tokenizer(model, fast)
    return model, fast


def _write_fast_tokenizer(model: Path, out: Path) -> None:
    """Write a model's tokenizer as one of Hugging Face's fast ones, with the same ids."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    vocabulary = Vocabulary.from_pretrained(model)
    special = sorted(vocabulary.special_tokens, key=vocabulary.special_tokens.__getitem__)
    converter = TikTokenConverter(str(model / "tiktoken.model"), SPLIT_PATTERN, extra_special_tokens=special)
    ends = {f"{kind}_token": f"[{kind.upper()}]" for kind in ("bos", "eos", "pad")}
    fast = PreTrainedTokenizerFast(tokenizer_object=converter.converted(), **ends)
    fast.chat_template = (model / "chat_template.jinja").read_text("utf-8")
    slow = AutoTokenizer.from_pretrained(model, trust_remote_code=True)
    text = "".join((model / "config.json").read_text("utf-8").split()) + "<|tool_calls_section_begin|>functions.f:0"
    if fast.encode(text, add_special_tokens=False) != slow.encode(text):
        raise RuntimeError("the fast copy of the tokenizer has other ids")
    fast.save_pretrained(out)
