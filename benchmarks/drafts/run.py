"""Counts model steps per call on real servers with drafts of the grammar, of n-grams, of both and none."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from constrained_k2.evaluation.bundled import HELD_OUT, build_demo_model, bundled_bodies
from constrained_k2.evaluation.server import API_SERVER, BACKEND_FLAGS, VllmServer
from constrained_k2.evaluation.server_metrics import parse_counters, total

_FLOAT32 = "--dtype=float32"  # in bfloat16 the likeliest token can depend on the batch size
_NO_GRAMMAR_DRAFTS = ("--additional-config", json.dumps({"constrained_k2": {"drafts": False}}))


def _speculation(**config: Any) -> tuple[str, str]:
    return "--speculative-config", json.dumps(config)


def arms(limit: int) -> Mapping[str, tuple[str, ...]]:
    """Return the flags of each arm; ``limit`` is the number of draft tokens a step."""
    ngram = _speculation(method="ngram", num_speculative_tokens=limit, prompt_lookup_min=2, prompt_lookup_max=4)
    ours = {"model": "constrained_k2.vllm_plugin.GrammarProposer", "num_speculative_tokens": limit}
    return {
        "none": (),
        "n-gram": (*ngram, *_NO_GRAMMAR_DRAFTS),
        "grammar": _speculation(method="custom_class", **ours),
        "grammar and n-gram": ngram,
    }


@dataclass(frozen=True, slots=True)
class Drafted:
    """The results of an arm.

    Attributes:
        ids: The token ids of each answer.
        generated: Tokens generated, by vLLM's count.
        accepted: Generated tokens that were accepted draft tokens.
        drafted: Draft tokens.
    """

    ids: tuple[tuple[int, ...], ...]
    generated: int
    accepted: int
    drafted: int

    @property
    def steps_per_token(self) -> float:
        """Model steps divided by generated tokens."""
        return (self.generated - self.accepted) / self.generated


async def _ask(url: str, bodies: Sequence[Mapping[str, Any]], concurrency: int) -> list[tuple[int, ...]]:
    slots = asyncio.Semaphore(concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:

        async def one(body: Mapping[str, Any]) -> tuple[int, ...]:
            async with slots:
                answer = await client.post("/v1/chat/completions", json=body)
                answer.raise_for_status()
                return tuple(answer.json()["choices"][0]["token_ids"])

        return await asyncio.gather(*map(one, bodies))


def measure(directory: Path, *, requests: int, limit: int, seed: int = 0) -> dict[str, Drafted]:
    """Send the same greedy held-out requests, each with a required call, to the demo model with every arm.

    Args:
        directory: Folder for the model and the servers' logs.
        requests: Number of requests.
        limit: Draft tokens a step.
        seed: Seed of the requests.
    """
    model = build_demo_model(directory / "model")
    common = {"model": "kimi-k2", "temperature": 0, "max_tokens": 400, "return_token_ids": True}
    samples = bundled_bodies(HELD_OUT, 4 * requests, seed)
    asked = [sample for sample in samples if sample["expected"]["calls"]][:requests]
    bodies = [
        {"messages": sample["messages"], "tools": sample["tools"], "tool_choice": "required"} | common
        for sample in asked
    ]
    results = {}
    for name, added in arms(limit).items():
        flags, log = (*BACKEND_FLAGS, _FLOAT32, *added), directory / f"{name}.log"
        with VllmServer(model, flags, log=log, entry=API_SERVER) as server:
            ids = asyncio.run(_ask(server.url, bodies, 8))
            counters = parse_counters(httpx.get(f"{server.url}/metrics", timeout=30).text, "vllm:")
        results[name] = Drafted(
            tuple(ids),
            round(total(counters, "vllm:generation_tokens_total")),
            round(total(counters, "vllm:spec_decode_num_accepted_tokens_total")),
            round(total(counters, "vllm:spec_decode_num_draft_tokens_total")),
        )
    return results
