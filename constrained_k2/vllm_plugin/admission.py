"""What is decided about a request before the engine sees it, in the API server's process."""

from functools import lru_cache
from hashlib import sha256
from typing import Any

from constrained_k2.closing import read_reserve
from constrained_k2.compiler import CompiledToolCalls
from constrained_k2.errors import ConstrainedK2Error, InvalidRequest
from constrained_k2.schema.coverage import KeywordUse
from constrained_k2.tools import EngineName, ToolCallSpec
from constrained_k2.vllm_plugin import metrics
from constrained_k2.vllm_plugin.compiling import compile_tools, compiled_ahead
from constrained_k2.vllm_plugin.refusals import refusals_noted, warn
from constrained_k2.vllm_plugin.settings import CLOSE_KEY, OFF, XARGS_KEY, Server


def admit(spec: ToolCallSpec, *, first: bool = False) -> CompiledToolCalls:
    """Refuse a request for which no grammar can be built; say, once a schema, what is not kept of one.

    Args:
        spec: The request.
        first: Whether this is where the request is first looked at, and to be counted: some pass here twice.

    Returns:
        The request, compiled over the vocabulary of bytes.

    Raises:
        InvalidRequest: The server does not offer the engine.
        UnsupportedSchema: A tool's schema has no grammar, or is strict and not kept whole.
        SchemaTooCostly: It is over a budget.
    """
    if spec.engine is not None and spec.engine not in Server.settings.engines:
        raise InvalidRequest(
            f"this server does not offer {spec.engine!r}",
            "engine",
            f"Leave it out, or start the server with --additional-config "
            f'\'{{"{XARGS_KEY}": {{"engines": ["llguidance", "{spec.engine}"]}}}}\'',
        )
    early = compiled_ahead.get()
    compiled = compile_tools(spec, count=first) if early is None or not early.is_for(spec) else early.compiled()
    if spec.max_calls != 0:
        for tool in spec.tools:
            relaxed = compiled.coverage(tool.name).relaxed
            if relaxed:
                _report(tool.name, sha256(tool.schema.encode(errors="backslashreplace")).digest(), relaxed[:8])
    if first:
        metrics.record_request(compiled, grammar_engine(spec))
    return compiled


def grammar_engine(spec: ToolCallSpec) -> EngineName:
    """The engine that matches the arguments of a request."""
    return spec.engine or Server.settings.engines[0]


@lru_cache(maxsize=4096)
def _report(name: str, schema: bytes, relaxed: tuple[KeywordUse, ...]) -> None:  # noqa: ARG001 - said once of each
    lost = "; ".join(f"{use.pointer} ({use.reason})" for use in relaxed)
    warn("not kept of a tool's schema", f"{name!r}: {lost}")


def require_route() -> None:
    """Refuse to serve unconstrained what asks to be constrained.

    Raises:
        InvalidRequest: The server's engine takes neither route.
    """
    if not Server.constrains:
        raise InvalidRequest(
            "this server parses tool calls but does not constrain them",
            "server",
            f'Start it with --additional-config \'{{"{XARGS_KEY}": {{"route": "backend"}}}}\', '
            f'or switch the constraint off with vllm_xargs {{"{XARGS_KEY}": "{OFF}"}}',
        )


def spec_in(extra_args: dict[str, Any] | None) -> ToolCallSpec | None:
    """The spec that a request's ``vllm_xargs`` carry; None for a request that is not to be constrained.

    Raises:
        InvalidRequest: The value is neither a spec's JSON nor 'off'.
        SchemaTooCostly: Over a budget.
    """
    value = (extra_args or {}).get(XARGS_KEY)
    if value is None or value == OFF:
        return None
    if not isinstance(value, str):
        raise InvalidRequest(
            "is not a string", f"vllm_xargs.{XARGS_KEY}", 'Send \'{"tools": […], "tool_choice": …}\' as a JSON string'
        )
    return ToolCallSpec.from_json(value, place=f"vllm_xargs.{XARGS_KEY}")


def reserve_in(extra_args: dict[str, Any] | None, default: int) -> int:
    """How many of its last tokens a request keeps for ending a call, by its ``vllm_xargs``.

    Args:
        extra_args: They.
        default: The operator's.

    Raises:
        InvalidRequest: What they say is no such number.
    """
    value = (extra_args or {}).get(CLOSE_KEY)
    return default if value is None else read_reserve(value, f"vllm_xargs.{CLOSE_KEY}")


def refuse_beam_search(extra_args: dict[str, Any] | None) -> None:
    """Refuse a spec beside beam search, whose requests do not pass the logits processor.

    Raises:
        ValueError: With the message for the client.
    """
    try:
        with refusals_noted():
            if spec_in(extra_args) is not None:
                raise InvalidRequest(
                    "cannot be combined with constrained tool calls", "use_beam_search", "Leave it out"
                )
    except ConstrainedK2Error as error:
        raise ValueError(str(error)) from error


def _refuse_beside(spec: ToolCallSpec, sampling_params: Any) -> None:
    """Refuse what would forbid tokens that tool calls need, or force some.

    Raises:
        InvalidRequest: The request asks for such a thing.
    """
    for field in ("bad_words", "allowed_token_ids", "structured_outputs"):
        if spec.max_calls != 0 and getattr(sampling_params, field):
            raise InvalidRequest("cannot be combined with tools that may be called", field, "Leave it out")
    if spec.max_calls != 0 and sampling_params.thinking_token_budget is not None:
        # vLLM forces the end of reasoning while it sees none: within a call that opened in reasoning too.
        raise InvalidRequest(
            "cannot be combined with tools that may be called", "thinking_token_budget", "Leave it out"
        )
    if sampling_params.trace_decode_token_ids:
        raise InvalidRequest("cannot be combined with a constraint", "trace_decode_token_ids", "Leave it out")


def check_params(sampling_params: Any, *, first: bool = False) -> CompiledToolCalls | None:
    """Refuse vLLM's sampling parameters if they carry a spec that cannot be served.

    Args:
        sampling_params: They.
        first: See :func:`admit`.

    Returns:
        The request they make, compiled over the vocabulary of bytes; None where they carry no spec.

    Raises:
        ValueError: With the message for the client; vLLM answers with HTTP 400.
    """
    try:
        with refusals_noted():
            spec = spec_in(sampling_params.extra_args)
            if spec is None:
                return None
            require_route()
            _refuse_beside(spec, sampling_params)
            reserve_in(sampling_params.extra_args, 0)
            return admit(spec, first=first)
    except ConstrainedK2Error as error:
        raise ValueError(str(error)) from error
