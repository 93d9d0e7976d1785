"""Measure model steps per token inside calls: grammar drafts, n-gram drafts, both and none (about 5 minutes).

Sends the same greedy held-out requests, each with a required call, to the small model with every arm. Exit code 1 if an
answer changes, or if grammar drafts need more than 0.4 steps per token.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from benchmarks.report import table
from benchmarks.servers.harness import FLOAT32, answers
from constrained_k2.evaluation.bundled import bundled_bodies
from constrained_k2.evaluation.server import API_SERVER, BACKEND_FLAGS, VllmServer
from constrained_k2.evaluation.server_metrics import parse_counters, total
from scripts.small_model.shipped import HELD_OUT, build_small_model

_NO_GRAMMAR_DRAFTS = ("--additional-config", json.dumps({"constrained_k2": {"drafts": False}}))
_COUNTERS = ("generation_tokens", "spec_decode_num_accepted_tokens", "spec_decode_num_draft_tokens")


def arms(limit: int) -> Mapping[str, tuple[str, ...]]:
    """Return the flags of each arm; ``limit`` is the number of draft tokens a step."""
    lookup = {"method": "ngram", "num_speculative_tokens": limit, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    ours = {"model": "constrained_k2.vllm_plugin.GrammarProposer", "num_speculative_tokens": limit}
    ngram = "--speculative-config", json.dumps(lookup)
    return {
        "none": (),
        "n-gram": (*ngram, *_NO_GRAMMAR_DRAFTS),
        "grammar": ("--speculative-config", json.dumps({"method": "custom_class", **ours})),
        "grammar and n-gram": ngram,
    }


def main() -> int:
    """Measure, and print one line per arm."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drafts", description=__doc__)
    parser.add_argument("--requests", type=int, default=100, help="(default: %(default)s)")
    parser.add_argument("--limit", type=int, default=8, help="draft tokens a step (default: %(default)s)")
    options = parser.parse_args()
    asked = [sample for sample in bundled_bodies(HELD_OUT, 4 * options.requests) if sample["expected"]["calls"]]
    common = {"model": "kimi-k2", "temperature": 0, "max_tokens": 400, "return_token_ids": True}
    bodies = [
        {"messages": sample["messages"], "tools": sample["tools"], "tool_choice": "required"} | common
        for sample in asked[: options.requests]
    ]
    expected: list[Any] = []
    rows: list[tuple[str, ...]] = []
    is_good = True
    with tempfile.TemporaryDirectory() as name:
        model = build_small_model(Path(name) / "model")
        for arm, added in arms(options.limit).items():
            flags, log = (*BACKEND_FLAGS, FLOAT32, *added), Path(name) / f"{arm}.log"
            with VllmServer(model, flags, log=log, entry=API_SERVER) as server:
                found = [answer["choices"][0]["token_ids"] for _, answer in answers(server.url, bodies)]
                counters = parse_counters(httpx.get(f"{server.url}/metrics", timeout=30).text, "vllm:")
            generated, accepted, drafted = (round(total(counters, f"vllm:{name}_total")) for name in _COUNTERS)
            expected = expected or found
            same = sum(one == other for one, other in zip(found, expected, strict=True))
            steps = (generated - accepted) / generated
            is_good &= same == len(expected) and not (arm.startswith("grammar") and steps > 0.4)
            rows.append((arm, f"{steps:.3f}", f"{accepted} of {drafted}", f"{same} of {len(expected)}"))
    print(table(("drafts", "model steps per token", "draft tokens accepted", "same answers as without drafts"), rows))
    return int(not is_good)


if __name__ == "__main__":
    sys.exit(main())
