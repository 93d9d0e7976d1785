"""Checks of the server itself: model, version, flags, and the requests that it refuses."""

import re

from constrained_k2.evaluation.answer import NoAnswer
from constrained_k2.evaluation.client import NotServed, Refused
from constrained_k2.evaluation.doctor.findings import Finding, fault, ok
from constrained_k2.evaluation.doctor.requests import UNWILLING, chat, closed, tool, user
from constrained_k2.evaluation.doctor.target import Target
from constrained_k2.evaluation.sample import UNCONSTRAINED
from constrained_k2.explain.view import printable

_BACK_REFERENCE = {"type": "string", "pattern": r"^(a+)-\1$"}
_INEXPRESSIBLE = closed(word=_BACK_REFERENCE, items={"type": "array", "uniqueItems": True})


async def model(target: Target) -> Finding:
    """The server has the model, with the special tokens of a format of Kimi's."""
    name = printable(target.model)
    if target.model not in target.models:
        names = ", ".join(printable(known, 60) for known in target.models[:5])
        return fault(f"{name!r} is not among its models: {names}", "Name one with --model")
    if target.format is None:
        seen = f"{name}; {target.lacking}, so prompts cannot be checked"
        remedy = "Let /tokenize and /detokenize through; without them only answers are checked. Is it a Kimi model?"
        return Finding("cannot tell", seen, remedy)
    wire = target.format
    return ok(f"{name} speaks {wire.name}; {wire.marker_texts['turn_end']} is {wire.turn_end}")


async def version(target: Target) -> Finding:
    """The version of vLLM renders Kimi's prompts correctly."""
    text = (await target.version()).version
    name = printable(text, 60)
    found = re.match(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?", text)
    if found is None or text.startswith("0.0.0") or found[0].startswith("0.1.dev"):
        return Finding("cannot tell", f"the version is {name!r}", "Install a released version of vLLM")
    number = tuple(int(part or 0) for part in found.groups())
    # https://vllm.ai/blog/2025-10-28-kimi-k2-accuracy found the prompts of 0.11.0 broken
    if number < (0, 11, 1) and not target.uses_tags:
        return fault(f"vLLM {name} is known to break Kimi K2's prompts", "Upgrade vLLM")
    if not (0, 32) <= number[:2] < (0, 34):
        seen = f"vLLM {name}; constrained_k2 is tested with 0.32 and 0.33"
        return Finding("warning", seen, "Install vllm>=0.32,<0.34")
    return ok(f"vLLM {name}")


async def flags(target: Target) -> Finding:
    """This package's parser and one of its routes are on; behind vLLM's Rust front end, one of its routes."""
    if target.rust:
        return _masks(target)
    if target.is_ours:
        return ok("the parser kimi_constrained is on, and a route that constrains")
    if target.parser and target.constrains is False:
        seen = "the parser kimi_constrained is on, but no route that constrains: what it admits is refused"
    elif target.constrains:
        seen = "a route is on, but not the parser kimi_constrained: chat requests are not constrained"
    elif target.constrains is False:
        seen = "constrained_k2 is installed, but neither its parser nor a route is on"
    else:
        seen = "constrained_k2 is not on: nothing was refused in its words"
    return fault(seen, target.switching_on)


def _masks(target: Target) -> Finding:
    if target.constrains is None:
        seen = "vLLM's Rust front end does not return what shows the masks of constrained_k2"
        return Finding("cannot tell", seen, target.switching_on)
    if target.constrains:
        return ok("vLLM's Rust front end; a string contains no special token, so constrained_k2 masks it")
    return fault(
        "vLLM's Rust front end; constrained_k2 is off: a string contains special tokens, or none was reached",
        target.switching_on,
    )


async def front_end(target: Target) -> Finding:
    """The HTTP server is vLLM's Python front end, which serves more than the one in Rust."""
    if not target.rust:
        return ok("no sign of vLLM's Rust front end")
    lacking = [f"POST {path}" for path in ("/v1/responses", "/v1/messages") if not await _is_served(target, path)]
    try:
        await target.chat({"messages": [user("Hello.")], "max_tokens": 1, "n": 2})
    except Refused:
        lacking.insert(0, "n > 1")
    seen = f"vLLM's Rust front end {target.rust}"
    if lacking:
        return Finding("warning", f"{seen} does not serve {', '.join(lacking)}", target.python_front_end)
    return ok(seen)


async def _is_served(target: Target, path: str) -> bool:
    try:
        await target.client.request(path, {})
    except NotServed:
        return False
    except NoAnswer:
        pass
    return True


async def auto_tool_choice(target: Target) -> Finding:
    """Tools are accepted with ``tool_choice: auto``."""
    try:
        await target.chat(chat("Hello.", "auto", max_tokens=1))
    except Refused as refusal:
        remedy = target.switching_on if "auto" in refusal.message else "See the server's error"
        return fault(f"tools with tool_choice 'auto' are refused: {refusal}", remedy)
    return ok("tools with tool_choice 'auto' are accepted")


async def strict_refused(target: Target) -> Finding:
    """A strict tool whose schema no engine can enforce is a 400, rather than silently relaxed."""
    tools = [tool("repeat", "Say it twice.", _INEXPRESSIBLE, strict=True)]
    try:
        await target.chat({"messages": [user("Hello.")], "tools": tools, "tool_choice": "auto", "max_tokens": 1})
    except Refused as refusal:
        if refusal.status == 400 and "strict" in refusal.message:
            return ok(f"a strict schema that cannot be enforced is refused: {printable(refusal.message, 100)}")
        return Finding("warning", f"the tool is refused, but not for being strict: {refusal}", target.constraining)
    remedy = target.constraining
    if target.is_ours:
        remedy = "Remove constrained_k2.strict.max (or most) from --additional-config: it lowers what clients request"
    return fault("strict: true with a back-reference and unique items is accepted, but cannot be enforced", remedy)


async def opt_out(target: Target) -> Finding:
    """``vllm_xargs {"constrained_k2": "off"}`` is accepted."""
    if not target.is_ours:
        return Finding("cannot tell", "constrained_k2 is not on, so there is nothing to opt out of")
    try:
        await target.chat(chat(UNWILLING, "auto", max_tokens=8, **UNCONSTRAINED))
    except Refused as refusal:
        return fault(f"a request that opts out is refused: {refusal}", target.constraining)
    return ok("a request can opt out with vllm_xargs")
