"""How many model steps a call takes under the grammar's drafts, beside n-gram drafts and none, on real servers."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from constrained_k2.evaluation.server import BACKEND_FLAGS, VllmServer
from constrained_k2.evaluation.server_metrics import parse_counters, total
from constrained_k2.evaluation.standin.build import build_stand_in
from constrained_k2.evaluation.standin.dialogs import held_out_samples

_FLOAT32 = "--dtype=float32"  # in bfloat16 the likeliest token may depend on how many rows a step has
_NO_DRAFTS_OF_OURS = ("--additional-config", json.dumps({"constrained_k2": {"drafts": False}}))


def _speculation(**config: Any) -> tuple[str, str]:
    return "--speculative-config", json.dumps(config)


def arms(limit: int) -> Mapping[str, Sequence[str]]:
    """The flags of each way to draft.

    Args:
        limit: How many tokens may be drafted at once.
    """
    ngram = _speculation(method="ngram", num_speculative_tokens=limit, prompt_lookup_min=2, prompt_lookup_max=4)
    grammar = _speculation(
        method="custom_class", model="constrained_k2.vllm_plugin.GrammarProposer", num_speculative_tokens=limit
    )
    return {"none": (), "n-gram": (*ngram, *_NO_DRAFTS_OF_OURS), "grammar": grammar, "grammar and n-gram": ngram}


@dataclass(frozen=True, slots=True)
class Drafted:
    """What came of an arm.

    Attributes:
        ids: The tokens of each answer.
        generated: The tokens that vLLM counted.
        accepted: Of these, those that came of a draft.
        drafted: The tokens drafted.
    """

    ids: tuple[tuple[int, ...], ...]
    generated: int
    accepted: int
    drafted: int

    @property
    def steps_per_token(self) -> float:
        """Model steps of a request by the tokens that it was answered with."""
        return (self.generated - self.accepted) / self.generated


async def _ask(url: str, bodies: Sequence[Mapping[str, Any]], concurrency: int) -> list[tuple[int, ...]]:
    places = asyncio.Semaphore(concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:

        async def one(body: Mapping[str, Any]) -> tuple[int, ...]:
            async with places:
                answer = await client.post("/v1/chat/completions", json=body)
                answer.raise_for_status()
                return tuple(answer.json()["choices"][0]["token_ids"])

        return await asyncio.gather(*map(one, bodies))


def measure(directory: Path, *, requests: int, limit: int, seed: int = 0) -> dict[str, Drafted]:
    """Ask the stand-in held-out requests, greedily, a call required in each, with every arm in turn.

    Args:
        directory: Takes the model and the servers' logs.
        requests: How many.
        limit: How many tokens may be drafted at once.
        seed: Of the requests.
    """
    model = build_stand_in(directory / "model")
    common = {"model": "kimi-k2", "temperature": 0, "max_tokens": 400, "return_token_ids": True}
    asked = [sample for sample in held_out_samples(4 * requests, seed) if sample["expected"]["calls"]][:requests]
    bodies = [
        {"messages": sample["messages"], "tools": sample["tools"], "tool_choice": "required"} | common
        for sample in asked
    ]
    results = {}
    for arm, flags in arms(limit).items():
        with VllmServer(model, (*BACKEND_FLAGS, _FLOAT32, *flags), log=directory / f"{arm}.log") as server:
            ids = asyncio.run(_ask(server.url, bodies, 8))
            counters = parse_counters(httpx.get(f"{server.url}/metrics", timeout=30).text, "vllm:")
        results[arm] = Drafted(
            tuple(ids),
            round(total(counters, "vllm:generation_tokens_total")),
            round(total(counters, "vllm:spec_decode_num_accepted_tokens_total")),
            round(total(counters, "vllm:spec_decode_num_draft_tokens_total")),
        )
    return results
