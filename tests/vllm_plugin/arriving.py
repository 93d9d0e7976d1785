"""Requests as they reach the engine core from front ends other than ours."""

from types import SimpleNamespace
from typing import Any

import xgrammar
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine import EngineCoreRequest

from constrained_k2 import Vocabulary
from constrained_k2.vllm_plugin.engine_core.intake import Intake
from constrained_k2.vllm_plugin.shared.byte_compiler import ENGINE_CORE, byte_compiler
from constrained_k2.vllm_plugin.shared.counters import EngineCounters
from constrained_k2.vllm_plugin.shared.settings import settings_in
from tests.kit.tools import tool

TOOLS = [tool(name, {"type": "object", "properties": {"q": {"enum": [name]}}}) for name in ("search", "web.fetch")]

SLOW = {
    "properties": {f"p{n}": {"patternProperties": {f"^{n}a": {"type": "string"}, f"b{n}$": {}}} for n in range(100)}
}
"""A schema that takes more than 50 ms to compile."""
NO_VALUE: dict[str, Any] = {"not": {}}
"""A schema that has no grammar."""


def intake_of(vocabulary: Vocabulary, route: Any = "structured_output", parser: str = "", **ours: Any) -> Intake:
    """The engine core's intake, with a reasoning parser and settings of ours."""
    given = SimpleNamespace(
        additional_config={"constrained_k2": ours}, structured_outputs_config=SimpleNamespace(reasoning_parser=parser)
    )
    made = Intake(given, vocabulary, route)
    compiler = byte_compiler(settings_in(given), ENGINE_CORE)
    compiler._compile_seconds = compiler.request_seconds = 60.0  # schemas of the tests are small, but CPUs are busy
    return made


def tag_of(**fields: Any) -> StructuredOutputsParams:
    """The structural tag of vLLM's front ends."""
    given = {"tools": TOOLS, "tool_choice": "required", "reasoning": "disabled"} | fields
    return StructuredOutputsParams(structural_tag=xgrammar.get_model_structural_tag("kimi", **given).model_dump_json())


def request(params: SamplingParams, ids: Any = (5, 6), **fields: Any) -> EngineCoreRequest:
    """A request on its way from a front end."""
    given = {"request_id": "r", "prompt_token_ids": None if ids is None else list(ids), "mm_features": None,
             "sampling_params": params, "pooling_params": None, "arrival_time": 0.0, "lora_request": None,
             "cache_salt": None, "data_parallel_rank": None}  # fmt: skip
    return EngineCoreRequest(**(given | fields))


def taken(
    vocabulary: Vocabulary, params: SamplingParams, ids: Any = (5, 6), route: Any = "structured_output",
    fields: Any = None, **ours: Any,
) -> SamplingParams:  # fmt: skip
    """The parameters of a request that an engine core with settings of ours has taken in; ``fields`` are the request's."""
    asked = request(params, ids, **(fields or {}))
    intake_of(vocabulary, route, **ours).take(asked)
    assert asked.sampling_params is not None
    return asked.sampling_params


def decided(counters: EngineCounters) -> dict[str, int]:
    """The number of requests that were adopted, by source, and left to vLLM, by reason."""
    return {name: count for name, count in (counters.adopted | counters.left).items() if count}


def one_tool(schema: Any, **fields: Any) -> list[dict[str, Any]]:
    """A tool named f."""
    return [tool("f", schema, **fields)]
