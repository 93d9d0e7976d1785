"""The remedies that findings name: flags, versions and settings."""

import shlex

from constrained_k2.evaluation.server import ADOPTED_FLAGS, BACKEND_FLAGS, KIMI_K3_FLAGS
from constrained_k2.formats.base import WireFormat

_TAG_FLAGS = KIMI_K3_FLAGS[-2:]  # the reasoning parser; vLLM chooses the tokenizer mode by the checkpoint
NEWER_TEMPLATE = (  # the commits are named by https://vllm.ai/blog/2025-10-28-kimi-k2-accuracy
    "Use a vLLM later than 0.11.0 and the checkpoint's current chat template (moonshotai/Kimi-K2-Instruct-0905 from "
    "commit 94a4053, Kimi-K2-Instruct from commit 0102674), without an older one in --chat-template"
)
OWN_ENCODER = (
    "Let the checkpoint's own encoder render prompts: vLLM 0.32 or later with --tokenizer-mode kimi_k3 and without "
    "--chat-template"
)


def uses_tags(wire: WireFormat | None) -> bool:
    """True if prompts and calls are made of tags, whose readers and checks differ."""
    return wire is not None and wire.argument_encoding == "xtml"


def switch_on(wire: WireFormat | None) -> str:
    """The flags that switch this package on."""
    return f"Install constrained-k2 with vLLM and start it with {_flags(wire)}"


def python_front_end(wire: WireFormat | None) -> str:
    """The flags that switch this package on, in vLLM's Python front end."""
    return (
        "Use vLLM's Python front end: unset VLLM_USE_RUST_FRONTEND, install constrained-k2 and start vLLM with "
        f"{_flags(wire)}"
    )


def adopt(wire: WireFormat | None) -> str:
    """The flags that constrain behind vLLM's Rust front end, where there are any."""
    if uses_tags(wire):
        return python_front_end(wire)
    return f"Install constrained-k2 with vLLM and start it with {shlex.join(ADOPTED_FLAGS)}"


def reasoning_parser(wire: WireFormat | None) -> str:
    """The flag that separates the reasoning from the content."""
    return f"Start vLLM with --reasoning-parser {'kimi_k3' if uses_tags(wire) else 'kimi_k2'}"


def prompts(wire: WireFormat | None) -> str:
    """The remedy where a prompt is not what the model was trained on."""
    return OWN_ENCODER if uses_tags(wire) else NEWER_TEMPLATE


def _flags(wire: WireFormat | None) -> str:
    return " ".join((*BACKEND_FLAGS, *(_TAG_FLAGS if uses_tags(wire) else ())))
