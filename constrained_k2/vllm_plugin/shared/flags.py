"""Detects the flags by which a vLLM server asks for this package.

Every vLLM process imports this.
"""

import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

PACKAGE = "constrained_k2.vllm_plugin"
"""The module under whose name operators load our logits processor and our proposer."""

TOOL_PARSER_NAME = "kimi_constrained"
"""The name of our tool parser, for any format; :data:`TOOL_PARSER_NAMES` has its older name too."""

TOOL_PARSER_NAMES = (TOOL_PARSER_NAME, "kimi_k2_constrained")

XARGS_KEY = "constrained_k2"
"""The key of our settings in ``additional_config``, and of a request's constraint in ``vllm_xargs``."""

_FLAGS = re.compile(
    rf"""{"|".join(TOOL_PARSER_NAMES)}|{re.escape(PACKAGE)}\b|["'.]{XARGS_KEY}["'.:]|^\s*{XARGS_KEY}\s*:""",
    re.MULTILINE,
)


def has_our_logits_processor(processors: Any) -> bool:
    """True if our logits processor is one of vLLM's ``logits_processors``: classes or dotted names."""
    names = (entry if isinstance(entry, str) else getattr(entry, "__module__", "") for entry in processors or ())
    return any(name.startswith(PACKAGE) for name in names)


def has_our_flags(config: Any) -> bool:
    """True if a ``VllmConfig`` or ``EngineArgs``, of whatever version, asks for this package."""
    additional = getattr(config, "additional_config", None)
    speculative = getattr(config, "speculative_config", None)
    proposer = speculative.get("model") if isinstance(speculative, dict) else getattr(speculative, "model", None)
    model = getattr(config, "model_config", config)
    return (
        (isinstance(additional, dict) and XARGS_KEY in additional)
        or has_our_logits_processor(getattr(model, "logits_processors", None))
        or str(proposer).startswith(PACKAGE)
    )


def process_has_our_flags() -> bool:
    """True if our flags are on this process's command line, or in the file that its ``--config`` names.

    For a process whose vLLM cannot be patched. Spawned processes of a server have their parent's command line. A script
    that makes an ``LLM`` has none: what it names of this package (processor, proposer) refuses to load.
    """
    arguments = sys.argv[1:]
    files = [Path(value) for name, value in pairwise(arguments) if name == "--config"]
    files += [Path(argument.partition("=")[2]) for argument in arguments if argument.startswith("--config=")]
    texts = [*arguments, *(path.read_text(errors="replace") for path in files if path.is_file())]
    return any(map(_FLAGS.search, texts))
