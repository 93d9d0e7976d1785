"""What is decided about a request before the engine sees it, in the API server's process.

A schema is checked by compiling it over a vocabulary of the 256 bytes: whether a grammar can be built does not depend
on the model's vocabulary, and that one costs nothing to set up.
"""

from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import Any, Literal, get_args

from constrained_k2.compiler import CompiledToolCalls, Compiler
from constrained_k2.errors import ConstrainedK2Error, InvalidRequest, kind_of_json
from constrained_k2.policy import DEFAULT_POLICY, StrictPolicy
from constrained_k2.schema.coverage import Coverage
from constrained_k2.tools import ENGINES, EngineName, ToolCallSpec
from constrained_k2.vllm_plugin import metrics
from constrained_k2.vllm_plugin.refusals import refusals_noted, warn
from constrained_k2.vocabulary import Vocabulary

XARGS_KEY = "constrained_k2"
"""The key in ``vllm_xargs`` (which arrives as ``SamplingParams.extra_args``) that carries a spec's JSON, or 'off'."""

REPAIR_KEY = "constrained_k2_repair"
"""The key in ``vllm_xargs`` by which a chat request asks that its history be mended ('on') or not ('off')."""

_COMPILE_SECONDS = 1.0
"""How long one schema may hold up the admission of requests."""
_REQUEST_SECONDS = 3.0
"""How long the schemas of one request may, but for the last one."""

OURS = "constrained_k2.vllm_plugin"
"""The module under whose name operators load our logits processor."""

Route = Literal["backend", "processor"]
"""How the engine is made to keep the constraint: see :mod:`constrained_k2.vllm_plugin.route`."""

OFF = "off"
"""The value by which a request asks not to be constrained."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator decides, in ``--additional-config '{"constrained_k2": {…}}'``.

    Attributes:
        policy: How strictly tools may have their schemas kept (``strict``).
        engines: Those that a request may ask for; the first one is used where it asks for none. Only llguidance by
            default: on the real vocabulary xgrammar may hold up the engine for seconds over one schema.
        repair: Whether chat requests that do not say are mended (:mod:`constrained_k2.vllm_plugin.repair`).
        route: What the operator says of the route, if anything.
        drafts: Whether the engine core drafts, under speculative decoding (:mod:`constrained_k2.vllm_plugin.proposer`).
        first_choices: One masked step in so many is examined for how often the mask forbids the likeliest token
            (:mod:`constrained_k2.vllm_plugin.first_choices`); 0 for none.
    """

    policy: StrictPolicy = DEFAULT_POLICY
    engines: tuple[EngineName, ...] = ("llguidance",)
    repair: bool = True
    route: Route | None = None
    first_choices: int = 16
    drafts: bool = True


class Server:
    """What is known of the server that this process belongs to; set when vLLM sets up its admission of requests."""

    constrains: bool = True
    """Whether its engine keeps constraints, by whichever route."""
    settings: Settings = Settings()


def remember_server(vllm_config: Any, route: Route | None) -> None:
    """Note whether the engine constrains, and what the operator has set.

    Args:
        vllm_config: vLLM's ``VllmConfig``.
        route: The engine's route.

    Raises:
        InvalidRequest: Its ``additional_config`` holds settings that are none.
    """
    Server.constrains = route is not None
    Server.settings = settings_in(vllm_config)


def settings_in(vllm_config: Any) -> Settings:
    """Read vLLM's ``additional_config``.

    Raises:
        InvalidRequest: What is there for us is not known.
    """
    config = vllm_config.additional_config
    ours = config.get(XARGS_KEY, {}) if isinstance(config, dict) else {}
    place = f"additional_config.{XARGS_KEY}"
    known = [field.name for field in fields(Settings) if field.name != "policy"]
    if not isinstance(ours, dict) or not ours.keys() <= {"strict", *known}:
        raise InvalidRequest(f"{str(ours)[:80]!r} is not known", place, f"Use {', '.join(['strict', *known])}")
    engines = ours.get("engines", ["llguidance"])
    if not isinstance(engines, list) or not engines or not all(name in ENGINES for name in engines):
        raise InvalidRequest(f"{str(engines)[:80]!r} is no list of {', '.join(ENGINES)}", f"{place}.engines")
    switches = {name: ours.get(name, True) for name in ("repair", "drafts")}
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise InvalidRequest(f"must be a boolean, not {kind_of_json(value)}", f"{place}.{name}")
    route = ours.get("route")
    if route is not None and route not in get_args(Route):
        raise InvalidRequest(f"{str(route)[:40]!r} is no route", f"{place}.route", "Use 'backend' or 'processor'")
    first_choices = ours.get("first_choices", Settings().first_choices)
    if not isinstance(first_choices, int) or isinstance(first_choices, bool) or first_choices < 0:
        raise InvalidRequest(
            f"must be a number of steps, not {kind_of_json(first_choices)}", f"{place}.first_choices", "Use 0 for never"
        )
    policy = StrictPolicy.from_config(ours.get("strict"))
    return Settings(policy, tuple(engines), route=route, first_choices=first_choices, **switches)


@cache
def byte_compiler(settings: Settings = Settings()) -> Compiler:
    """The compiler that admission uses."""
    return Compiler(
        Vocabulary.of_bytes(),
        settings.engines[0],
        policy=settings.policy,
        compile_seconds=_COMPILE_SECONDS,
        request_seconds=_REQUEST_SECONDS,
    )


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
    compiled = byte_compiler(Server.settings).compile(spec, check=False)
    try:
        compiled.check_all()
    finally:
        if first:
            metrics.record_lookups(compiled)
    if spec.max_calls != 0:
        for tool in spec.tools:
            _report(tool.name, tool.schema, compiled.coverage(tool.name))
    if first:
        metrics.record_request(compiled, grammar_engine(spec))
    return compiled


def grammar_engine(spec: ToolCallSpec) -> EngineName:
    """The engine that matches the arguments of a request."""
    return spec.engine or Server.settings.engines[0]


@lru_cache(maxsize=4096)
def _report(name: str, schema: str, coverage: Coverage) -> None:  # noqa: ARG001 - what it is said once of
    if coverage.relaxed:
        lost = "; ".join(f"{use.pointer} ({use.reason})" for use in coverage.relaxed[:8])
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


def check_params(sampling_params: Any, *, first: bool = False) -> ToolCallSpec | None:
    """Refuse vLLM's sampling parameters if they carry a spec that cannot be served.

    Args:
        sampling_params: They.
        first: See :func:`admit`.

    Returns:
        The spec that they carry.

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
            admit(spec, first=first)
    except ConstrainedK2Error as error:
        raise ValueError(str(error)) from error
    return spec
