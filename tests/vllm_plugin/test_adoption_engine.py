"""Whole engines on a random model: requests with vLLM's own structural tag, on both routes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import jsonschema
import xgrammar

from constrained_k2 import Vocabulary, parse_completion
from scripts.bundled_samples.ordinary import TOOLS
from tests.vllm_plugin.engine_run import run_in_its_own_process

pytestmark = [pytest.mark.server, pytest.mark.timeout(1200)]  # a test may start an engine first

SCHEMAS = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in TOOLS}
RESERVE = {"constrained_k2_finish_reserve": 80}
ROUTES: dict[str, dict[str, Any]] = {
    "structured output": {"additional_config": {"constrained_k2": {"route": "structured_output"}}},
    "logits processor": {"logits_processors": ["constrained_k2.vllm_plugin:KimiK2LogitsProcessor"]},
}


def requests(vocabulary: Vocabulary) -> Iterator[dict[str, Any]]:
    markers = vocabulary.format
    for number in range(48):
        tools = TOOLS[number % 4 : number % 4 + 3]
        named = {"type": "function", "function": {"name": tools[0]["function"]["name"]}}
        tag = xgrammar.get_model_structural_tag(
            "kimi",
            tools=list(tools),
            tool_choice=("required", "auto", named, "required")[number % 4],
            reasoning="disabled",
            parallel_tool_calls=number % 3 != 0,
        )
        earlier = [markers.call_begin, *vocabulary.encode("functions.x:0")] * (number % 5)
        prompt = [*vocabulary.encode(f"Request {number}"), *earlier, *([markers.think_begin] * (number % 6 == 0))]
        params = {"max_tokens": 400, "seed": number, "extra_args": RESERVE}
        if number % 4 == 1:  # so that a random model calls something under tool_choice auto
            params["logit_bias"] = {markers.section_begin: 100.0}
        yield {"prompt": prompt, "params": params, "structured": {"structural_tag": tag.model_dump_json()}}
    yield {"prompt": vocabulary.encode("x"), "params": {"max_tokens": 20, "seed": 1}, "structured": {"regex": "ab+c"}}
    free = {"max_tokens": 40, "seed": 2, "logit_bias": {markers.call_begin: 100.0}, "skip_special_tokens": False}
    yield {"prompt": vocabulary.encode("x"), "params": free}


@pytest.mark.parametrize("route", ROUTES)
def test_tagged_requests_are_ours(model: Path, vocabulary: Vocabulary, tmp_path: Path, route: str) -> None:
    asked = list(requests(vocabulary))
    done = run_in_its_own_process(tmp_path / "job.json", model, ROUTES[route], asked)
    called = 0
    for number, (request, answer) in enumerate(zip(asked[:48], done["answers"], strict=False)):
        (one,) = answer
        in_reasoning = request["prompt"][-1] == vocabulary.format.think_begin
        read = parse_completion(one["ids"], vocabulary, in_reasoning=in_reasoning)
        names = [tool["function"]["name"] for tool in TOOLS[number % 4 : number % 4 + 3]]
        assert not read.cut_calls and [call.index for call in read.tool_calls] == [
            number % 5 + at for at in range(len(read.tool_calls))
        ]
        for call in read.tool_calls:
            assert call.name in (names[:1] if number % 4 == 2 else names)
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
        if number % 4 != 1:
            assert read.tool_calls and not read.content
        if number % 3 == 0 or number % 4 == 2:
            assert len(read.tool_calls) <= 1
        called += len(read.tool_calls)
    assert called >= 48
    assert done["answers"][48][0]["text"].startswith("ab")  # vLLM's own structured outputs, as before
    assert done["totals"]["adopted_tag"] == 48 and done["totals"]["left_format"] == 0
    assert done["totals"]["unconstrained_calls"] == 40  # the last request: nothing asked for a constraint
