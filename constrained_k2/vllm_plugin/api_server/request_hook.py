"""Reads a chat or responses request, and writes its constraint into ``vllm_xargs`` for the engine."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, TypeVar

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from constrained_k2.errors import ConstrainedK2Error, InvalidRequest, SchemaTooCostly
from constrained_k2.formats.kimi_k2 import THINK_BEGIN
from constrained_k2.request.answer_format import read_answer_format
from constrained_k2.request.spec import ENGINES, ToolCallSpec
from constrained_k2.request.tools import DEFAULT_LIMITS
from constrained_k2.threads.interruptible import run_interruptibly, switch_interval
from constrained_k2.vllm_plugin.api_server.admission import compile_tools, grammar_engine, report, require_route
from constrained_k2.vllm_plugin.api_server.functions import (
    choice_of,
    declared_tools,
    field_of,
    functions_of,
    report_left_out,
    set_fields,
)
from constrained_k2.vllm_plugin.api_server.metrics import record_admission
from constrained_k2.vllm_plugin.api_server.refusals import refusal, refusals_noted
from constrained_k2.vllm_plugin.api_server.request_state import RequestState, calls_before
from constrained_k2.vllm_plugin.shared.constraint import fields_in, finish_reserve_in
from constrained_k2.vllm_plugin.shared.flags import XARGS_KEY
from constrained_k2.vllm_plugin.shared.log import warn
from constrained_k2.vllm_plugin.shared.server import Server
from constrained_k2.vllm_plugin.shared.settings import (
    ALLOWED_TOOLS_KEY,
    CONSTRAINT_KEYS,
    DIAGNOSTICS_KEY,
    OFF,
    ON,
    TEXT_FORMATS_KEY,
    read_switch,
)

T = TypeVar("T")
_threads = ThreadPoolExecutor(max_workers=16, thread_name_prefix="constrained_k2 admission")
"""More than there are cores: what is compiled already must not wait for what takes long."""


def may_think(parser: Any, tokenizer: Any) -> bool:
    """True if the model may reason when the request does not say."""
    return parser.reasoning_parser_cls is not None or THINK_BEGIN in str(getattr(tokenizer, "chat_template", None))


@refusals_noted()
def constrain_request(request: Any, *, thinking: bool) -> None:
    """Write the request's constraint into its ``vllm_xargs``, in place.

    A request without tools whose history has calls is treated as with ``tool_choice`` "none", because a model that sees
    calls tends to write more. A request without tools is left unconstrained if it has neither calls in its history nor
    a response format, or if its response format has no grammar here and is not strict: vLLM may have a grammar.
    """
    known = RequestState.attached_to(request)
    is_read = known is not None and (known.compiled is not None or known.error is not None)
    if not is_read and not _is_ours(request):
        _drop_switch(request)
        return
    extra, switch, is_diagnosed = _read_switches(request)
    functions, state = functions_of(request), RequestState.of(request)
    if switch != OFF:
        if functions and field_of(request, "use_beam_search"):
            raise refusal("use_beam_search")
        require_route()
        finish_reserve_in(extra, 0)
        if state.compiled is None and state.error is None:
            _read(request, state, thinking)
        if state.compiled is None:
            _leave(request, state)
            request.vllm_xargs = extra
            return
        report(state.compiled, first=True)
        report_left_out(request)
        constraint = state.compiled.spec
        if is_diagnosed:
            state.diagnosed_engine = grammar_engine(constraint)
        if constraint.choice == "required":
            set_fields(request, stop=[], stop_token_ids=[])  # there is no text: a stop could only cut off the call
        extra[XARGS_KEY] = state.text
        if state.has_form or constraint.choice == "required":
            # vLLM would apply the response format to the whole turn. Its fields stay: a response shows them again.
            object.__setattr__(request, "extract_structured_outputs", lambda: None)
    if functions or state.has_form:
        show_special_tokens(request)
    request.vllm_xargs = extra


def _drop_switch(request: Any) -> None:
    """Remove ``constrained_k2: on`` (or an engine's name) from a request that is not constrained.

    Clients may send it with every request, and the engine core would read it as a constraint.
    """
    xargs = request.vllm_xargs or {}
    if xargs.get(XARGS_KEY) in (ON, *ENGINES):
        request.vllm_xargs = {name: value for name, value in xargs.items() if name != XARGS_KEY}


def _read_switches(request: Any) -> tuple[dict[str, Any], str, bool]:
    """Return (the remaining ``vllm_xargs``, the switch of the constraint, whether diagnostics are asked for).

    Keys that become part of the constraint are removed.
    """
    extra = dict(request.vllm_xargs or {})
    switch = extra.pop(XARGS_KEY, ON)
    for key in (ALLOWED_TOOLS_KEY, TEXT_FORMATS_KEY, *CONSTRAINT_KEYS):
        extra.pop(key, None)
    is_diagnosed = read_switch(
        extra.pop(DIAGNOSTICS_KEY, OFF), DIAGNOSTICS_KEY, "constrained-k2 explain shows overrides"
    )
    if switch not in (ON, OFF, *ENGINES):
        raise InvalidRequest(
            f"must be {ON!r}, {OFF!r} or an engine's name beside tools, not {str(switch)[:40]!r}",
            f"vllm_xargs.{XARGS_KEY}",
            "Only /v1/completions takes tools here",
        )
    return extra, switch, is_diagnosed


def show_special_tokens(request: Any) -> None:
    """Make vLLM's text exactly the text of the tokens, markers included."""
    set_fields(request, skip_special_tokens=False, spaces_between_special_tokens=False)


async def precompile(request: Any, state: RequestState, *, thinking: bool) -> None:
    """Read a request and compile its tools in a thread, so that other requests continue meanwhile."""
    if not isinstance(request, ChatCompletionRequest | ResponsesRequest):  # /tokenize's, which is not constrained
        return
    may_be_ours = request.tools or _names_form(request) or state.history_calls
    if (request.vllm_xargs or {}).get(XARGS_KEY) != OFF and may_be_ours:
        await in_thread(_read_if_ours, request, state, thinking)


def _read_if_ours(request: Any, state: RequestState, thinking: bool) -> None:  # noqa: FBT001 - run_in_executor's
    if _is_ours(request):
        _read(request, state, thinking)


def _names_form(request: Any) -> bool:
    """True if a request has a field for a response format: reading a long one takes a thread's time."""
    return any(field_of(request, name) is not None for name in ("response_format", "text", "structured_outputs"))


def _is_ours(request: Any) -> bool:
    """True for a request with tools, with a response format that masks can enforce, or with calls in its history."""
    if request.tools or field_of(request, "use_beam_search"):
        return bool(request.tools)
    return bool(_answer_fields(request, may_call=False)) or (Server.constrains and calls_before(request) > 0)


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run a function in a thread of admission, with breaks for other threads, and count the time until it returns.

    The short switch interval begins here: a thread that waits for the interpreter lock waits for one such interval.
    """
    begun = time.perf_counter()
    try:
        with switch_interval.short():
            return await asyncio.get_running_loop().run_in_executor(_threads, run_interruptibly, function, *arguments)
    finally:
        record_admission(time.perf_counter() - begun)


def _read(request: Any, state: RequestState, thinking: bool) -> None:  # noqa: FBT001 - run_in_executor's
    extra = request.vllm_xargs or {}
    switch = extra.get(XARGS_KEY, ON)
    functions = functions_of(request)
    try:
        body = {
            "tools": declared_tools(request),
            "tool_choice": choice_of(request, functions) if request.tools else "none",
            "parallel_tool_calls": request.parallel_tool_calls,
            "first_index": calls_before(request),
            "chat_template_kwargs": _switches(request.chat_template_kwargs),
            "engine": switch if switch in ENGINES else None,
            **fields_in(extra),
        } | _answer_fields(request, may_call=bool(functions) and request.tool_choice != "none")
        is_diagnosed = extra.get(DIAGNOSTICS_KEY, OFF) != OFF  # tells how schemas compile
        spec = ToolCallSpec.from_openai(body, thinking=thinking)
        state.compiled = compile_tools(spec, count=True, by_shape=not is_diagnosed)
        state.text = state.compiled.resolved_spec.to_json()
    except ConstrainedK2Error as error:
        state.error = error


def _switches(variables: Any) -> dict[str, bool]:
    """The boolean variables of a chat template. Others have a meaning only to the template."""
    return {name: value for name, value in (variables or {}).items() if isinstance(value, bool)}


def _answer_fields(request: Any, *, may_call: bool) -> dict[str, Any]:
    """The fields of a chat or responses request that give a response format, as decoded JSON.

    If no tool may be called, a format that only vLLM knows is left to vLLM.
    """
    fields: dict[str, Any] = {}
    for name in ("response_format", "text"):
        value = field_of(request, name)
        if value is not None:
            fields[name] = value.model_dump(by_alias=True, exclude_none=True)
    if request.structured_outputs is not None:
        given = asdict(request.structured_outputs)
        fields["structured_outputs"] = {name: value for name, value in given.items() if not name.startswith("_")}
    return fields if may_call or _is_form(fields) else {}


def _is_form(fields: dict[str, Any]) -> bool:
    """True for a response format that this package reads, also if it is too long."""
    try:
        return read_answer_format(fields, DEFAULT_LIMITS) is not None
    except InvalidRequest:
        return False
    except SchemaTooCostly:
        return True


def _leave(request: Any, state: RequestState) -> None:
    """Leave a request that has no grammar to vLLM; raises why if it has tools or a strict response format."""
    assert state.error is not None
    fields = _answer_fields(request, may_call=True)
    form = fields.get("response_format") or fields.get("text", {}).get("format") or {}
    if request.tools or (form.get("json_schema") or form).get("strict") is True:
        raise state.error
    warn("an answer's form is left to vLLM", str(state.error))
