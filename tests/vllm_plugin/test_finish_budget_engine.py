"""Whole engines on a random model, at a ``max_tokens`` that cuts calls: with tokens kept for their end none is cut."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import jsonschema

from constrained_k2 import Vocabulary, parse_completion
from scripts.bundled_samples.ordinary import TOOLS
from tests.vllm_plugin.engine_run import run_in_its_own_process

pytestmark = [pytest.mark.server, pytest.mark.timeout(1200)]  # a test may start an engine or two first

SCHEMAS = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in TOOLS}
REQUESTS, MAX_TOKENS, RESERVE = 100, 80, 60
BACKEND = {"additional_config": {"constrained_k2": {"route": "structured_output"}}}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
GRAMMAR = {
    "method": "custom_class",
    "model": "constrained_k2.vllm_plugin.GrammarProposer",
    "num_speculative_tokens": 6,
}
ENGINES: dict[str, dict[str, Any]] = {
    "processor": {"logits_processors": ["constrained_k2.vllm_plugin:KimiK2LogitsProcessor"]},
    "backend, ngram": BACKEND | {"speculative_config": NGRAM},
    "backend, grammar": BACKEND | {"speculative_config": GRAMMAR},
}


def requests(vocabulary: Vocabulary) -> Iterator[dict[str, Any]]:
    """Each twice: without anything kept for the end, and with."""
    for number in range(REQUESTS):
        spec = {
            "tools": [TOOLS[number % len(TOOLS)]],
            "tool_choice": "required",
            "parallel_tool_calls": number % 2 == 0,
        }
        prompt = vocabulary.encode(f"Request {number * 7919} please")
        for reserve in (0, RESERVE):
            extra = {"constrained_k2": json.dumps(spec), "constrained_k2_finish_reserve": reserve}
            yield {
                "prompt": prompt,
                "params": {"seed": number, "max_tokens": MAX_TOKENS, "extra_args": extra},
            }


@pytest.mark.parametrize("name", list(ENGINES))
def test_no_call_is_cut_where_tokens_are_kept_for_its_end(
    name: str, model: Path, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    done = run_in_its_own_process(tmp_path / "job.json", model, ENGINES[name], list(requests(vocabulary)))
    answers = [answer[0] for answer in done["answers"]]
    without, kept = answers[::2], answers[1::2]
    cut = sum(answer["reason"] == "length" for answer in without)
    print(f"{name}: {cut} of {REQUESTS} cut with nothing kept, "
          f"{sum(answer['reason'] == 'length' for answer in kept)} with {RESERVE} tokens")  # fmt: skip
    assert cut > REQUESTS // 4
    for answer in kept:
        assert answer["reason"] == "stop", vocabulary.decode(answer["ids"])
        for call in parse_completion(answer["ids"], vocabulary).tool_calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
