"""Which server is it, and how was it started?"""

import re

from constrained_k2.evaluation.chat_answer import member
from constrained_k2.evaluation.doctor.bodies import chat
from constrained_k2.evaluation.doctor.connection import Refused
from constrained_k2.evaluation.doctor.finding import Finding, ok, shown
from constrained_k2.evaluation.doctor.remedies import SWITCH_ON
from constrained_k2.evaluation.doctor.target import Target

_REPAIRED = (0, 11, 1)  # https://vllm.ai/blog/2025-10-28-kimi-k2-accuracy found the prompts of 0.11.0 broken
_MADE_FOR = ((0, 32), (0, 34))


async def model(target: Target) -> Finding:
    """Whether the server has the model, with Kimi's special tokens."""
    names = ", ".join(shown(name, 60) for name in target.models[:5])
    if target.model not in target.models:
        return Finding("fault", f"{shown(target.model)!r} is not among its models: {names}", "Give one by --model")
    if target.markers is None:
        return Finding(
            "cannot tell",
            f"{shown(target.model)}; /tokenize does not give the ids of Kimi's special tokens, so prompts are not seen",
            "Let /tokenize and /detokenize through; without them only answers can be checked. Is it a Kimi model?",
        )
    return ok(f"{shown(target.model)}; <|im_end|> is {target.marker('<|im_end|>')}")


async def version(target: Target) -> Finding:
    """Whether vLLM is one with which Kimi's prompts come out right."""
    said = member(await target.connection.get("/version"), "version", str, "/version") or ""
    found = re.match(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?", said)
    if found is None or said.startswith("0.0.0") or found[0].startswith("0.1.dev"):
        return Finding("cannot tell", f"the version is {shown(said, 60)!r}", "Install a released version of vLLM")
    number = tuple(int(part or 0) for part in found.groups())
    if number < _REPAIRED:
        return Finding("fault", f"vLLM {shown(said, 60)} is known to break Kimi K2's prompts", "Upgrade vLLM")
    if not _MADE_FOR[0] <= number[:2] < _MADE_FOR[1]:
        return Finding(
            "warning", f"vLLM {shown(said, 60)}; constrained_k2 is made for 0.32 and 0.33", "Install vllm>=0.32,<0.34"
        )
    return ok(f"vLLM {shown(said, 60)}")


async def flags(target: Target) -> Finding:
    """Whether this package's parser and one of its routes are on. Seen by what they refuse, in their own words."""
    if target.is_ours:
        return ok("the parser kimi_k2_constrained is on, and a route that constrains")
    if target.parser and target.constrains is False:
        seen = "the parser kimi_k2_constrained is on, but no route that constrains: what it admits is refused"
        return Finding("fault", seen, SWITCH_ON)
    if target.constrains:
        seen = "a route is on, but not the parser kimi_k2_constrained: chat requests are not constrained"
        return Finding("fault", seen, SWITCH_ON)
    if target.constrains is False:
        return Finding("fault", "constrained_k2 is installed, and neither of its parts is switched on", SWITCH_ON)
    return Finding("fault", "constrained_k2 is not on: nothing was refused in its words", SWITCH_ON)


async def auto_tool_choice(target: Target) -> Finding:
    """Whether tools can be sent at all without forcing one."""
    try:
        await target.chat(chat("Hello.", "auto", max_tokens=1))
    except Refused as refusal:
        remedy = SWITCH_ON if "auto" in refusal.message else "See what the server says of it"
        return Finding("fault", f"tools with tool_choice 'auto' are refused: {refusal}", remedy)
    return ok("tools with tool_choice 'auto' are taken")
