"""Requests to a test's server that must succeed, and parts of their answers."""

import asyncio
from typing import Any

from constrained_k2.evaluation.server import VllmServer
from scripts.bundled_samples.ordinary import ordinary_samples
from tests.vllm_plugin.asking import post
from tests.vllm_plugin.openai_client import ask_all, judged

CHAT = "/v1/chat/completions"


def answered(server: VllmServer, path: str, **body: Any) -> Any:
    """The JSON of a successful answer."""
    answer = post(server, path, **body)
    assert answer.is_success, answer.text
    return answer.json()


def only_choice(server: VllmServer, path: str = CHAT, **body: Any) -> Any:
    """The only choice of a successful answer."""
    (choice,) = answered(server, path, **body)["choices"]
    return choice


def said(response: dict[str, Any]) -> str:
    """The text of the messages of OpenAI's Responses API."""
    messages = (item for item in response["output"] if item["type"] == "message")
    return "".join(part["text"] for message in messages for part in message["content"])


def check_random(server: VllmServer, count: int, *, whole: float, due: float) -> None:
    """Every call in the answers to so many samples is declared, valid and numbered.

    Args:
        server: It serves a random model.
        count: The number of samples.
        whole: The least share of answers that ``max_tokens`` does not cut off.
        due: The least share of samples that require a call.
    """
    samples = list(ordinary_samples(count, seed=1))
    answers = asyncio.run(ask_all(server.url, samples, model="kimi-k2", temperature=1.0, max_tokens=2048))
    result, problems = judged(samples, answers)
    assert not problems
    assert result.success - result.truncated >= whole * count
    assert result.served == result.due >= due * count
    assert result.calls == result.declared == result.valid == result.numbered > 0.6 * count
