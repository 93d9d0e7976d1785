"""Is what cannot be constrained refused, and can a request ask not to be?"""

from constrained_k2.evaluation.doctor.bodies import UNWILLING, chat, tool, user
from constrained_k2.evaluation.doctor.connection import Refused
from constrained_k2.evaluation.doctor.finding import Finding, ok, shown
from constrained_k2.evaluation.doctor.remedies import constraining
from constrained_k2.evaluation.doctor.target import Target
from constrained_k2.evaluation.samples import UNCONSTRAINED

_CANNOT_BE_KEPT = {
    "type": "object",
    "properties": {
        "word": {"type": "string", "pattern": r"^(a+)-\1$"},
        "items": {"type": "array", "uniqueItems": True},
    },
    "required": ["word", "items"],
    "additionalProperties": False,
}


async def strict_refused(target: Target) -> Finding:
    """A strict tool whose schema no engine keeps is a 400, not a promise broken silently."""
    tools = [tool("repeat", "Say it twice.", _CANNOT_BE_KEPT, strict=True)]
    body = {"messages": [user("Hello.")], "tools": tools, "tool_choice": "auto", "max_tokens": 1}
    try:
        await target.chat(body)
    except Refused as refusal:
        if refusal.status == 400 and "strict" in refusal.message:
            return ok(f"a strict schema that cannot be kept is refused: {shown(refusal.message, 100)}")
        seen = f"it is refused, and not for being strict: {refusal}"
        return Finding("warning", seen, constraining(target))
    remedy = constraining(target)
    if target.is_ours:
        remedy = "Take 'most' out of --additional-config's constrained_k2.strict: it lowers what clients ask for"
    return Finding("fault", "strict: true with a back-reference and unique items is taken, and cannot be kept", remedy)


async def opt_out(target: Target) -> Finding:
    """``vllm_xargs {"constrained_k2": "off"}`` is taken."""
    if not target.is_ours:
        return Finding("cannot tell", "constrained_k2 is not on, so there is nothing to opt out of")
    try:
        await target.chat(chat(UNWILLING, "auto", max_tokens=8, **UNCONSTRAINED))
    except Refused as refusal:
        return Finding("fault", f"a request that opts out is refused: {refusal}", constraining(target))
    return ok("a request can opt out by vllm_xargs")
