"""A chat or responses request, lowered into what the engine receives."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.parser.utils import count_history_tool_calls

from constrained_k2.errors import ConstrainedK2Error, InvalidRequest
from constrained_k2.tools import ENGINES, ToolCallSpec
from constrained_k2.vllm_plugin import diagnostics
from constrained_k2.vllm_plugin.admission import admit, grammar_engine, require_route, reserve_in
from constrained_k2.vllm_plugin.compiling import CompiledAhead
from constrained_k2.vllm_plugin.refusals import refusals_noted
from constrained_k2.vllm_plugin.repair import history_calls
from constrained_k2.vllm_plugin.settings import OFF, ON, XARGS_KEY, Server


@refusals_noted()
def lower(request: Any, *, thinking: bool) -> None:
    """Write the request's constraint into its ``vllm_xargs``, in place. A request without tools is left alone.

    Args:
        request: vLLM's ``ChatCompletionRequest`` or ``ResponsesRequest``.
        thinking: Whether the model may reason when the request does not say.

    Raises:
        ConstrainedK2Error: The request cannot be constrained.
    """
    if not request.tools:
        return
    extra = dict(request.vllm_xargs or {})
    switch = extra.pop(XARGS_KEY, ON)
    with_diagnostics = diagnostics.take_switch(extra)
    if switch not in (ON, OFF, *ENGINES):
        raise InvalidRequest(
            f"must be {ON!r}, {OFF!r} or an engine's name beside tools, not {str(switch)[:40]!r}",
            f"vllm_xargs.{XARGS_KEY}",
            "A spec of its own is for /v1/completions",
        )
    # So that vLLM's text is exactly the text of the tokens, markers included.
    _set(request, skip_special_tokens=False, spaces_between_special_tokens=False)
    if switch != OFF:
        _refuse_conflicts(request)
        require_route()
        reserve_in(extra, 0)
        body = _body(request) | ({} if switch == ON else {"engine": switch})
        spec = ToolCallSpec.from_openai(body, thinking=thinking)
        admitted = admit(spec, first=True)
        if with_diagnostics:
            diagnostics.attach(request, admitted, grammar_engine(spec))
        if spec.choice == "required":
            # There is no text to stop in: a stop could only cut the call that was asked for.
            _set(request, stop=[], stop_token_ids=[])
        extra[XARGS_KEY] = spec.to_json()
    request.vllm_xargs = extra


async def compile_ahead(request: Any) -> CompiledAhead | None:
    """Compile a request's tools in a thread, so that other requests go on meanwhile.

    Args:
        request: As for :func:`lower`, which then admits it; nothing is refused here.
    """
    if not isinstance(request, ChatCompletionRequest | ResponsesRequest):  # one to tokenize, which nobody constrains
        return None
    if not request.tools or (request.vllm_xargs or {}).get(XARGS_KEY) == OFF:
        return None
    context = copy_context()
    return await asyncio.get_running_loop().run_in_executor(_threads, context.run, _compile, request)


def _compile(request: Any) -> CompiledAhead | None:
    switch = (request.vllm_xargs or {}).get(XARGS_KEY, ON)
    try:
        spec = ToolCallSpec.from_openai(_body(request) | ({"engine": switch} if switch in ENGINES else {}))
    except ConstrainedK2Error:
        return None
    if spec.engine is not None and spec.engine not in Server.settings.engines:
        return None
    return CompiledAhead.of(spec)


_threads = ThreadPoolExecutor(max_workers=16, thread_name_prefix="constrained_k2 admission")
"""More than there are cores: what is compiled already must not wait for what takes long."""


def _set(request: Any, **fields: Any) -> None:
    """Set the fields that this kind of request has (a responses request has not all of them)."""
    for name, value in fields.items():
        if name in type(request).model_fields:
            setattr(request, name, value)


def _body(request: Any) -> dict[str, Any]:
    """The fields that make the spec, as plain values; the calls counted in the history that the prompt shows."""
    choice = request.tool_choice
    counted = history_calls.get()
    return {
        "tools": [tool.model_dump() for tool in request.tools],
        "tool_choice": choice.model_dump() if hasattr(choice, "model_dump") else choice,
        "parallel_tool_calls": request.parallel_tool_calls,
        "first_index": count_history_tool_calls(request) if counted is None else counted,
        "chat_template_kwargs": request.chat_template_kwargs,
    }


def _refuse_conflicts(request: Any) -> None:
    """Refuse what would forbid tokens that the tool calls need, or would bypass the constraint.

    Raises:
        InvalidRequest: The request asks for such a thing.
    """
    conflicting = {"use_beam_search": getattr(request, "use_beam_search", False)}
    if request.tool_choice != "none":
        for field in ("bad_words", "allowed_token_ids"):
            conflicting[field] = getattr(request, field, None)
        conflicting["thinking_token_budget"] = getattr(request, "thinking_token_budget", None) is not None
        if request.extract_structured_outputs() is not None:
            asked = ("structured_outputs", "response_format")
            field = next((name for name in asked if getattr(request, name, None) is not None), "text.format")
            conflicting[field] = True
    for field, value in conflicting.items():
        if value:
            raise InvalidRequest(
                "cannot be combined with tools that may be called",
                field,
                f'Leave it out, send tool_choice "none", or switch off with vllm_xargs {{"{XARGS_KEY}": "{OFF}"}}',
            )
