"""What to change, in the words of a command line.

The commits of the checkpoints are those that https://vllm.ai/blog/2025-10-28-kimi-k2-accuracy names.
"""

from constrained_k2.evaluation.doctor.target import Target
from constrained_k2.evaluation.server import BACKEND_FLAGS

SWITCH_ON = f"Install constrained-k2 beside vLLM and start it with {' '.join(BACKEND_FLAGS)}"

NEWER_TEMPLATE = (
    "Use a vLLM later than 0.11.0 and the checkpoint's present chat template (moonshotai/Kimi-K2-Instruct-0905 from "
    "commit 94a4053, Kimi-K2-Instruct from commit 0102674), and no older one by --chat-template"
)


def constraining(target: Target) -> str:
    """What to do about an answer that is not as it must be."""
    if target.is_ours:
        return "constrained_k2 is on and did not hold: look into the server's log, and report it"
    return SWITCH_ON


def repairing(target: Target) -> str:
    """What to do about a request that would have to be repaired before it becomes a prompt."""
    if target.is_ours:
        return (
            "Update constrained-k2 to a version that repairs requests in the server, or see that it is not switched off"
        )
    return SWITCH_ON
