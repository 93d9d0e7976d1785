"""Time HTTP requests with tools that no server has seen, up to the first token, on real vLLM servers.

A random model with Kimi K2's vocabulary, and tools of public MCP servers whose names, properties and descriptions are
new in every request (scripts/fetch_data.py fetches both). All servers run at the same time and take turns; those that
are not asked are suspended. It takes 15 GB of memory.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from benchmarks.host.arms import xgrammar_tag
from benchmarks.host.workload import REAL_TOKENIZER, load
from benchmarks.report import table
from benchmarks.servers.harness import FREE, options_with_arms, running, taking_turns, turned
from benchmarks.servers.new_tools import renewed
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.testing import build_model
from constrained_k2.vocabulary.vocabulary import Vocabulary

_FLAGS = (
    "--max-model-len=131072",
    "--enable-chunked-prefill",  # no request has a seed, beside which the CPU engine does not survive chunks
    "--max-num-batched-tokens=1024",
    "--max-num-seqs=4",
    "--no-enable-prefix-caching",
)
_WINDOW = 64  # tokens of attention
_TOKENS = 48  # of an answer: a call's id, and the beginning of its arguments
_WARM_UP = 2  # requests of one tool to every arm, which are not counted

Sample = tuple[float, float]
"""The times of one request, in milliseconds: to its first token, and the longest between two later tokens."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_token", description=__doc__)
    parser.add_argument("--rounds", type=int, default=25, help="(default: %(default)s)")
    parser.add_argument("--tools", type=int, action="append", help="repeatable (default: 1, 16 and 64)")
    options, arms = options_with_arms(parser)
    counts, seeds = options.tools or (1, 16, 64), iter(range(1, 1_000_000))
    found: dict[tuple[str, int], list[Sample]] = {(arm, count): [] for arm in arms for count in counts}
    with tempfile.TemporaryDirectory() as name:
        workload = load(Path(name) / "small")
        tools = comparable(workload.vocabulary, workload.tools)
        print(f"{workload.source}; {len(tools)} that every arm compiles\n", flush=True)
        model = write_model(Path(name), REAL_TOKENIZER if REAL_TOKENIZER.is_dir() else None)
        with taking_turns(model, arms, _FLAGS, Path(name)) as servers:
            for _ in range(_WARM_UP):
                for arm in arms:
                    _sample(servers[arm], arm, renewed(tools[:1], next(seeds)))
            for count in counts:
                for number in range(options.rounds):
                    new = renewed(tools[:count], next(seeds))
                    for arm in turned(arms, number):
                        found[arm, count].append(_sample(servers[arm], arm, new))
    for field, title in enumerate(("first token", "longest step after it")):
        rows = [(arm, *(cell(found[arm, count], found[FREE, count], field) for count in counts)) for arm in arms]
        print(f"{title}, ms: median; added to the same requests unconstrained: median (min to max)\n")
        print(table(("tools", *map(str, counts)), rows), "\n")


def cell(samples: Sequence[Sample], baseline: Sequence[Sample], field: int) -> str:
    """Format a field's median, and what is added to the baseline's of the same round."""
    added = sorted(own[field] - other[field] for own, other in zip(samples, baseline, strict=True))
    spread = f"; {statistics.median(added):+.0f} ({added[0]:+.0f} to {added[-1]:+.0f})"
    return f"{statistics.median(sample[field] for sample in samples):.0f}{'' if samples is baseline else spread}"


def comparable(vocabulary: Vocabulary, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools that xgrammar compiles; admission decides of ours, which is part of what is measured."""
    takes = xgrammar_tag(vocabulary).takes
    return [tool for tool in tools if takes(tool)]


def write_model(directory: Path, tokenizer: Path | None) -> Path:
    """Write a random model whose prompts may be long; ``tokenizer``: the real vocabulary's, None for a small one."""
    model = build_model(directory / "kimi", arch="llama", tokenizer=tokenizer)
    config = json.loads((model / "config.json").read_bytes())
    # Attention to a window makes the time of a long prompt linear: whole attention takes a CPU minutes.
    config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": _WINDOW}
    (model / "config.json").write_text(json.dumps(config))
    return model


def body_of(arm: str, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return an arm's request: all but the free one must call, and make their grammar of the tools."""
    return {
        "model": "kimi-k2",
        "messages": [{"role": "user", "content": "What can these tools do?"}],
        "tools": list(tools),
        "tool_choice": "auto" if arm == FREE else "required",
        "max_tokens": _TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,  # makes vLLM send a chunk for every token, whatever its parser shows of it
    }


def _sample(server: VllmServer, arm: str, tools: Sequence[dict[str, Any]]) -> Sample:
    """Send a request to a server that is suspended otherwise."""
    with running(server), httpx.Client(base_url=server.url, timeout=600) as client:
        client.get("/health").raise_for_status()  # opens the connection, and the server runs
        start = time.monotonic()
        times = _token_times(client, body_of(arm, tools))
    return 1e3 * (times[0] - start), 1e3 * max(later - earlier for earlier, later in pairwise(times))


def _token_times(client: httpx.Client, body: Mapping[str, Any]) -> list[float]:
    """Return when each chunk with tokens of a stream came."""
    times: list[float] = []
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        if not answer.is_success:
            raise RuntimeError(f"HTTP {answer.status_code}: {answer.read()[:500]!r}")
        for line in answer.iter_lines():
            if line.startswith("data: {") and '"token_ids":[' in line:
                times.append(time.monotonic())
            elif '"error"' in line:
                raise RuntimeError(line[:500])
    return times


if __name__ == "__main__":
    main()
