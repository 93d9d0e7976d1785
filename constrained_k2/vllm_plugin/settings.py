"""What an operator has set, where every process of the server finds it."""

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from constrained_k2.closing import read_reserve
from constrained_k2.errors import InvalidRequest, kind_of_json
from constrained_k2.policy import DEFAULT_POLICY, StrictPolicy
from constrained_k2.tools import ENGINES, EngineName

XARGS_KEY = "constrained_k2"
"""The key in ``vllm_xargs`` (which arrives as ``SamplingParams.extra_args``) that carries a spec's JSON, or 'off'."""

REPAIR_KEY = "constrained_k2_repair"
"""The key in ``vllm_xargs`` by which a chat request asks that its history be mended ('on') or not ('off')."""

CLOSE_KEY = "constrained_k2_close"
"""The key in ``vllm_xargs`` by which a request says how many of its last tokens are kept for ending a call."""

OURS = "constrained_k2.vllm_plugin"
"""The module under whose name operators load our logits processor."""

Route = Literal["backend", "processor"]
"""How the engine is made to keep the constraint: see :mod:`constrained_k2.vllm_plugin.route`."""

ON = "on"
"""The value by which a request asks for something; of :data:`XARGS_KEY`, beside tools, to be constrained as it would be
anyway. So does an engine's name there, with that engine."""

OFF = "off"
"""The value by which a request asks for something not to be done; of :data:`XARGS_KEY`, to be constrained."""


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
        close: How many of its last tokens a request that does not say keeps for ending a call
            (:mod:`constrained_k2.closing`); 0 for none.
        cache_mib: What the grammars that a process remembers may hold together, in MiB, estimated.
        mask_cache_mib: What the masks may that it remembers; 0 for none.
    """

    policy: StrictPolicy = DEFAULT_POLICY
    engines: tuple[EngineName, ...] = ("llguidance",)
    repair: bool = True
    route: Route | None = None
    first_choices: int = 16
    drafts: bool = True
    cache_mib: int = 256
    mask_cache_mib: int = 64
    close: int = 0


class Server:
    """What is known of the server that this process belongs to; set when vLLM sets up its admission of requests."""

    constrains: bool = True
    """Whether its engine keeps constraints, by whichever route."""
    model_name: str = ""
    """vLLM's ``model_name`` label."""
    settings: Settings = Settings()


def remember_server(vllm_config: Any, route: Route | None) -> None:
    """Note whether the engine constrains, what it serves, and what the operator has set.

    Args:
        vllm_config: vLLM's ``VllmConfig``.
        route: The engine's route.

    Raises:
        InvalidRequest: Its ``additional_config`` holds settings that are none.
    """
    Server.constrains = route is not None
    Server.model_name = vllm_config.model_config.served_model_name
    Server.settings = settings_in(vllm_config)


def read_switch(value: object, key: str) -> bool:
    """Whether a switch in a request's ``vllm_xargs`` is on.

    Args:
        value: What the request holds.
        key: Under which key.

    Raises:
        InvalidRequest: It is neither 'on' nor 'off'.
    """
    if value not in (ON, OFF):
        raise InvalidRequest(f"must be {ON!r} or {OFF!r}, not {str(value)[:40]!r}", f"vllm_xargs.{key}")
    return value == ON


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
    numbers = {
        name: ours.get(name, getattr(Settings(), name)) for name in ("first_choices", "cache_mib", "mask_cache_mib")
    }
    for name, value in numbers.items():
        least = 1 if name == "cache_mib" else 0
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InvalidRequest(f"must be a whole number from {least}, not {str(value)[:40]!r}", f"{place}.{name}")
    policy = StrictPolicy.from_config(ours.get("strict"))
    close = read_reserve(ours.get("close", 0), f"{place}.close")
    return Settings(policy, tuple(engines), route=route, close=close, **numbers, **switches)
