"""The operator's settings, and the fields of ``vllm_xargs``, with their documentation."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from constrained_k2.errors import InvalidRequest
from constrained_k2.request.call_limits import MAX_CALLS, REPEATS
from constrained_k2.request.spec import EngineName
from constrained_k2.request.strictness import DEFAULT_POLICY, StrictPolicy
from constrained_k2.request.undeclared_calls import CALL_THRESHOLD, UndeclaredCalls
from constrained_k2.request.undeclared_calls import EXPECTED as UNDECLARED_CALLS
from constrained_k2.schema.undeclared_keys import DEFAULT as DEFAULT_UNDECLARED_KEYS
from constrained_k2.schema.undeclared_keys import EXPECTED, UndeclaredKeys
from constrained_k2.turn.finish_budget import MAX_FINISH_RESERVE
from constrained_k2.vllm_plugin.shared.flags import XARGS_KEY

Route = Literal["structured_output", "logits_processor"]
"""The process that computes masks: see :mod:`constrained_k2.vllm_plugin.shared.route`."""

Adopt = Literal["tag", "prompt", "off"]
"""The requests of other front ends that are constrained: see :mod:`constrained_k2.vllm_plugin.engine_core.adoption`."""

_LOCATION = f"additional_config.{XARGS_KEY}"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings in ``--additional-config '{"constrained_k2": {…}}'``: see :data:`SETTINGS`."""

    strict: Any = DEFAULT_POLICY  # a StrictPolicy, which msgspec does not take apart
    undeclared_keys: UndeclaredKeys = DEFAULT_UNDECLARED_KEYS
    undeclared_calls: UndeclaredCalls = "decline"
    call_threshold: Annotated[float, Meta(ge=0, le=1)] = CALL_THRESHOLD
    engines: Annotated[tuple[EngineName, ...], Meta(min_length=1)] = ("llguidance",)
    repair: bool = True
    route: Route | None = None
    adopt: Adopt = "tag"
    drafts: bool = True
    finish_reserve: Annotated[int, Meta(ge=0, le=MAX_FINISH_RESERVE)] = 0
    memory_mib: Annotated[int, Meta(ge=1)] = 320

    @property
    def grammar_bytes(self) -> int:
        """The bound of a process's compiled grammars: four fifths of the memory."""
        return (self.memory_mib << 20) * 4 // 5

    @property
    def mask_bytes(self) -> int:
        """The bound of a process's cached masks: the rest."""
        return (self.memory_mib << 20) - self.grammar_bytes


@dataclass(frozen=True, slots=True)
class Row:
    """One setting or request field, for the documentation."""

    name: str
    expected: str
    default: Any
    meaning: str


_DEFAULTS = Settings()
_RESERVE = f"a whole number from 0 to {MAX_FINISH_RESERVE}"

SETTINGS = (
    Row("strict", "'json_object', 'best_effort', 'strict', or an object of min, max and false", "no bounds",
        "The strictness level of all tools. In an object, `min` and `max` are the lowest and the highest level, and "
        "`false` is the level of tools with `strict: false`."),
    Row("undeclared_keys", EXPECTED, _DEFAULTS.undeclared_keys,
        "Whether the model may write keys that `properties` does not declare, if the schema does not forbid them."),
    Row("undeclared_calls", UNDECLARED_CALLS, _DEFAULTS.undeclared_calls,
        "If the model probably wants an undeclared function: `decline` drops the call; `nearest` forces the name of a "
        "declared function."),
    Row("call_threshold", "a number from 0 to 1", _DEFAULTS.call_threshold,
        "A call is declined if, at any token of its name, the tokens that continue a declared name have "
        "together a probability below this."),
    Row("engines", "a list of 'llguidance' and 'xgrammar'", ["llguidance"],
        "The engines that requests may name; the first is the default. With xgrammar, one schema may block the engine "
        "core for seconds."),
    Row("repair", "true or false", _DEFAULTS.repair,
        "Whether chat histories are repaired."),
    Row("route", "'structured_output' or 'logits_processor'", "chosen by the flags",
        "Where masks are computed: 'logits_processor' with --logits-processors, else 'structured_output'."),
    Row("adopt", "'tag', 'prompt' or 'off'", _DEFAULTS.adopt,
        "Which requests of other front ends and parsers are constrained. `tag`: those with a structural tag (vLLM's "
        "description of the allowed calls); `prompt`: also those whose prompt declares tools as JSON; `off`: none."),
    Row("drafts", "true or false", _DEFAULTS.drafts,
        "Whether the grammar proposes draft tokens under speculative decoding."),
    Row("finish_reserve", _RESERVE, _DEFAULTS.finish_reserve,
        "How many tokens at the end of `max_tokens` are kept for completing a call or a response format."),
    Row("memory_mib", "a whole number from 1", _DEFAULTS.memory_mib,
        "The limit, in MiB per process, of the estimated size of compiled grammars (four fifths) and cached masks (one "
        "fifth)."),
)  # fmt: skip
"""The settings."""

_EXPECTED = {row.name: row.expected for row in SETTINGS}

ON, OFF = "on", "off"
"""The values of a switch in a request's ``vllm_xargs``."""

REPAIR_KEY = "constrained_k2_repair"
FINISH_RESERVE_KEY = "constrained_k2_finish_reserve"
STRICT_FALSE_KEY = "constrained_k2_strict_false"
DIAGNOSTICS_KEY = "constrained_k2_diagnostics"
UNDECLARED_KEYS_KEY = "constrained_k2_undeclared_keys"
UNDECLARED_CALLS_KEY = "constrained_k2_undeclared_calls"
MAX_CALLS_KEY = "constrained_k2_max_calls"
REPEATED_CALLS_KEY = "constrained_k2_repeated_calls"
CONSTRAINT_KEYS = (UNDECLARED_KEYS_KEY, UNDECLARED_CALLS_KEY, MAX_CALLS_KEY, REPEATED_CALLS_KEY)
"""The fields that become part of a request's constraint."""

ALLOWED_TOOLS_KEY = "constrained_k2_allowed_tools"
"""A chat request's ``tool_choice`` of type allowed_tools as JSON, which vLLM's models refuse in its own place: see
:mod:`constrained_k2.vllm_plugin.api_server.middleware`."""

TEXT_FORMATS_KEY = "constrained_k2_text_formats"
"""The grammars of custom tools as JSON, by the tools' numbers: the same."""

REQUEST_FIELDS = (
    Row(XARGS_KEY,
        "'on', 'off', 'llguidance' or 'xgrammar'; on /v1/completions a JSON string with tools and tool_choice",
        ON,
        "Whether calls and response formats are constrained, and by which engine."),
    Row(UNDECLARED_KEYS_KEY, EXPECTED, "the setting undeclared_keys",
        "Replaces the setting for this request."),
    Row(UNDECLARED_CALLS_KEY, UNDECLARED_CALLS, "the setting undeclared_calls",
        "Replaces the setting for this request."),
    Row(MAX_CALLS_KEY, MAX_CALLS, "no bound", "The maximum number of calls in a turn."),
    Row(REPEATED_CALLS_KEY, REPEATS, "allow", "Whether a call may repeat an earlier call of its turn."),
    Row(REPAIR_KEY, "'on' or 'off'", "the setting repair", "Replaces the setting for this request."),
    Row(FINISH_RESERVE_KEY, _RESERVE, "the setting finish_reserve",
        "Replaces the setting for this request."),
    Row(STRICT_FALSE_KEY, "'best_effort' or 'json_object'", "the setting strict",
        "The level of the request's tools with `strict: false`."),
    Row(DIAGNOSTICS_KEY, "'on' or 'off'", OFF, "Whether each choice of a chat answer carries diagnostics."),
)  # fmt: skip
"""The fields of a request's ``vllm_xargs``."""


def settings_in(vllm_config: Any) -> Settings:
    """Read vLLM's ``additional_config``."""
    config = vllm_config.additional_config
    ours = config.get(XARGS_KEY, {}) if isinstance(config, dict) else {}
    names = ", ".join(_EXPECTED)
    if not isinstance(ours, dict):
        raise InvalidRequest(f"must be an object, not {str(ours)[:80]!r}", _LOCATION, f"Use {names}")
    given = dict(ours)
    if unknown := given.keys() - _EXPECTED.keys():
        raise InvalidRequest(f"unknown setting {str(min(unknown, key=str))[:40]!r}", _LOCATION, f"Use {names}")
    bounds = given.pop("strict", None)
    for name, value in given.items():
        try:
            msgspec.convert({name: value}, Settings)
        except msgspec.ValidationError as error:
            raise InvalidRequest(
                f"must be {_EXPECTED[name]}, not {str(value)[:40]!r}", f"{_LOCATION}.{name}"
            ) from error
    read = msgspec.convert(given, Settings)
    return msgspec.structs.replace(read, strict=StrictPolicy.from_config(bounds))


def read_switch(value: object, key: str, remedy: str = "") -> bool:
    """True if a switch in a request's ``vllm_xargs`` is on."""
    if value not in (ON, OFF):
        raise InvalidRequest(f"must be {ON!r} or {OFF!r}, not {str(value)[:40]!r}", f"vllm_xargs.{key}", remedy)
    return value == ON
