"""What is decided about a request before the engine sees it, in the API server's process.

A schema is checked by compiling it over a vocabulary of the 256 bytes: whether a grammar can be built does not depend
on the model's vocabulary, and that one costs nothing to set up.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from constrained_k2.compiler import Compiler
from constrained_k2.errors import ConstrainedK2Error, InvalidRequest
from constrained_k2.tools import ToolCallSpec
from constrained_k2.vocabulary import Vocabulary

XARGS_KEY = "constrained_k2"
"""The key in ``vllm_xargs`` (which arrives as ``SamplingParams.extra_args``) that carries a spec's JSON, or 'off'."""

_COMPILE_SECONDS = 1.0
"""How long one schema may hold up the admission of requests."""

_OURS = "constrained_k2.vllm_plugin"

OFF = "off"
"""The value by which a request asks not to be constrained."""


@cache
def byte_compiler() -> Compiler:
    """The compiler that admission uses."""
    return Compiler(Vocabulary.of_bytes(), compile_seconds=_COMPILE_SECONDS)


def admit(spec: ToolCallSpec) -> None:
    """Refuse a request for which no grammar can be built.

    Raises:
        UnsupportedSchema: A tool's schema has no grammar.
    """
    byte_compiler().compile(spec)


class Server:
    """What is known of the server that this process belongs to; set when vLLM sets up its admission of requests."""

    processors: tuple[str, ...] | None = None
    """The names of its logits processors; None where no server has been set up (in tests, say)."""


def remember_server(logits_processors: Sequence[Any] | None) -> None:
    """Note which logits processors the engine runs.

    Args:
        logits_processors: vLLM's ``ModelConfig.logits_processors``: names, or classes.
    """
    Server.processors = tuple(
        entry if isinstance(entry, str) else f"{entry.__module__}:{entry.__qualname__}"
        for entry in logits_processors or ()
    )


def require_processor() -> None:
    """Refuse to serve unconstrained what asks to be constrained.

    Raises:
        InvalidRequest: The server runs without the logits processor.
    """
    if Server.processors is not None and not any(name.startswith(_OURS) for name in Server.processors):
        raise InvalidRequest(
            "this server parses tool calls but does not constrain them",
            "server",
            f"Start it with --logits-processors {_OURS}:KimiK2LogitsProcessor, "
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


def refuse_beam_search(extra_args: dict[str, Any] | None) -> None:
    """Refuse a spec beside beam search, whose requests do not pass the logits processor.

    Raises:
        ValueError: With the message for the client.
    """
    try:
        if spec_in(extra_args) is not None:
            raise InvalidRequest("cannot be combined with constrained tool calls", "use_beam_search", "Leave it out")
    except ConstrainedK2Error as error:
        raise ValueError(str(error)) from error


def check_params(sampling_params: Any) -> None:
    """Refuse vLLM's sampling parameters if they carry a spec that cannot be served.

    Raises:
        ValueError: With the message for the client; vLLM answers with HTTP 400.
    """
    try:
        spec = spec_in(sampling_params.extra_args)
        if spec is None:
            return
        require_processor()
        for field in ("bad_words", "allowed_token_ids", "structured_outputs"):
            if spec.max_calls != 0 and getattr(sampling_params, field):
                raise InvalidRequest("cannot be combined with tools that may be called", field, "Leave it out")
        admit(spec)
    except ConstrainedK2Error as error:
        raise ValueError(str(error)) from error
