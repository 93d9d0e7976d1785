"""Reads a request's constraint from its sampling parameters, and tags it for the engine core.

Front end, engine core and workers read it by this code.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vllm.sampling_params import StructuredOutputsParams

from constrained_k2.errors import InvalidRequest
from constrained_k2.request.call_limits import read_max_calls, read_repeated_calls
from constrained_k2.request.spec import ENGINES, ToolCallSpec
from constrained_k2.request.strictness import StrictFalse, read_strict_false
from constrained_k2.request.undeclared_calls import read_undeclared_calls
from constrained_k2.schema.undeclared_keys import read_undeclared_keys
from constrained_k2.turn.finish_budget import read_finish_reserve
from constrained_k2.vllm_plugin.shared.flags import XARGS_KEY
from constrained_k2.vllm_plugin.shared.settings import (
    FINISH_RESERVE_KEY,
    MAX_CALLS_KEY,
    OFF,
    ON,
    REPEATED_CALLS_KEY,
    STRICT_FALSE_KEY,
    UNDECLARED_CALLS_KEY,
    UNDECLARED_KEYS_KEY,
)

_TAG = "constrained_k2, precompile: "
"""The beginning of the structured output by which the engine core recognizes a tagged request."""

_REFUSED = _TAG + "refused"


def constraint_text(extra_args: dict[str, Any] | None) -> str | None:
    """The constraint that a request carries, as JSON; None for a request that is not constrained."""
    value = (extra_args or {}).get(XARGS_KEY)
    if value is None or value == OFF:
        return None
    if not isinstance(value, str):
        raise InvalidRequest(
            "must be a string", f"vllm_xargs.{XARGS_KEY}", 'Send \'{"tools": […], "tool_choice": …}\' as a JSON string'
        )
    return value


def carries_constraint(extra_args: dict[str, Any] | None) -> bool:
    """True if a request carries a constraint, right or wrong; False for a switch alone."""
    value = (extra_args or {}).get(XARGS_KEY)
    return value is not None and value not in (ON, OFF, *ENGINES)


def constraint_in(extra_args: dict[str, Any] | None) -> ToolCallSpec | None:
    """The constraint that a request carries; None for a request that is not constrained."""
    text = constraint_text(extra_args)
    if text is None:
        return None
    constraint = ToolCallSpec.from_json(text, location=f"vllm_xargs.{XARGS_KEY}")
    strict_false = strict_false_in(extra_args)
    return constraint if strict_false is None else replace(constraint, strict_false=strict_false)


def is_masked(constraint: ToolCallSpec) -> bool:
    """False where the text is free and no tool may be called: vLLM's own limits on tokens leave a token then."""
    return constraint.max_calls != 0 or constraint.answer is not None


def strict_false_in(extra_args: dict[str, Any] | None) -> StrictFalse | None:
    """The level that a request gives to tools with ``strict: false``; None if it does not say."""
    return read_strict_false((extra_args or {}).get(STRICT_FALSE_KEY), f"vllm_xargs.{STRICT_FALSE_KEY}")


def fields_in(extra_args: dict[str, Any] | None) -> dict[str, Any]:
    """The fields of ``vllm_xargs`` that become part of a constraint, for :meth:`.ToolCallSpec.from_openai`."""
    given = extra_args or {}
    keys = given.get(UNDECLARED_KEYS_KEY)
    location = "vllm_xargs."
    return {
        "undeclared_keys": None if keys is None else read_undeclared_keys(keys, location + UNDECLARED_KEYS_KEY),
        "undeclared_calls": read_undeclared_calls(given.get(UNDECLARED_CALLS_KEY), location + UNDECLARED_CALLS_KEY),
        "max_calls": read_max_calls(given.get(MAX_CALLS_KEY), location + MAX_CALLS_KEY),
        "repeated_calls": read_repeated_calls(given.get(REPEATED_CALLS_KEY), location + REPEATED_CALLS_KEY),
        "strict_false": strict_false_in(extra_args),
    }


def finish_reserve_in(extra_args: dict[str, Any] | None, default: int) -> int:
    """The number of its last tokens that a request keeps for ending a call."""
    value = (extra_args or {}).get(FINISH_RESERVE_KEY)
    return default if value is None else read_finish_reserve(value, f"vllm_xargs.{FINISH_RESERVE_KEY}")


def tag(sampling_params: Any, precompile: Sequence[int] | None) -> None:
    """Tag a request for the engine core, with the tools, by position, to compile before it is scheduled.

    None is for a constraint that no process has checked yet: the engine core does, before it is scheduled.
    """
    tools = None if precompile is None else list(precompile)
    sampling_params.structured_outputs = StructuredOutputsParams(grammar=_TAG + json.dumps(tools))


def refuse(sampling_params: Any) -> None:
    """Tag a request so that the engine core ends it: it cannot be constrained."""
    sampling_params.structured_outputs = StructuredOutputsParams(grammar=_REFUSED)


def is_refused(sampling_params: Any) -> bool:
    """True if a tagged request is one that the engine core ends."""
    return bool(sampling_params.structured_outputs.grammar == _REFUSED)


def is_tagged(sampling_params: Any) -> bool:
    """True if a request is tagged. No client can tag one: vLLM's validation, which comes first, names a backend."""
    asked = sampling_params.structured_outputs
    if asked is None or asked._backend is not None:  # noqa: SLF001 - vLLM's own mark
        return False
    return asked.grammar is not None and asked.grammar.startswith(_TAG)


def precompile_of(sampling_params: Any) -> list[int] | None:
    """The tools to compile before a tagged request is scheduled, by their positions; None if it is to be checked."""
    positions: list[int] | None = json.loads(sampling_params.structured_outputs.grammar.removeprefix(_TAG))
    return positions
