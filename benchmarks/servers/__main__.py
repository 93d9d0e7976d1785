"""Measure decode steps a second and time to first token on real vLLM servers, by each route and without.

About 10 minutes. All servers run at the same time and take turns; those that are not asked are suspended.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from benchmarks.report import table
from benchmarks.servers.harness import (
    FLOAT32,
    FREE,
    Ratio,
    cpu_seconds,
    options_with_arms,
    paired,
    running,
    taking_turns,
    turned,
)
from benchmarks.servers.new_tools import extended
from constrained_k2.evaluation.sample import bundled_bodies
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.evaluation.server_metrics import growth, parse_counters, total
from scripts.small_model.shipped import HELD_OUT, build_small_model
from scripts.smollm2.checkpoint import write_checkpoint

_MAX_TOKENS = 64
_ROWS = 32
_INTERVAL = 16  # tokens in a chunk of a stream; after the first chunk all prompts of a wave are done
_FLAGS = (FLOAT32, f"--max-num-seqs={_ROWS}", f"--stream-interval={_INTERVAL}")
_REQUESTS = 4  # in a burst, at least, in waves of the concurrency
_MOST_REQUESTS = 1_000  # of a burst
_DRAWN = 8  # samples drawn for each one sent


class Burst(NamedTuple):
    """One burst of requests, in waves: each wave is sent at once and ends before the next one.

    Attributes:
        step: Time of a decode step in seconds: for each request between two tokens after the first chunk of its stream,
            then the median of a wave, then the mean of the waves. Earlier tokens would include other requests' prefill.
        first_token: Mean time to first token in seconds, by the server's metrics.
        masks: Share of the burst's wall time that this package spent on masks.
        cpu: CPU seconds of all processes of the server for 1,000 tokens, prompts included. Other load on the machine
            changes it less than ``step``.
    """

    step: float
    first_token: float
    masks: float
    cpu: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.servers", description=__doc__)
    parser.add_argument("--smollm2", action="store_true", help="use the demo's model, SmolLM2, not the small model")
    parser.add_argument("--known-tools", action="store_true", help="send the same requests in every round")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument(
        "--concurrency", type=int, action="append", help="requests at a time; repeatable (default: 1, 8 and 32)"
    )
    options, arms = options_with_arms(parser)
    concurrencies = options.concurrency or (1, 8, 32)
    with tempfile.TemporaryDirectory() as name:
        directory, model = Path(name), Path(name) / "model"
        (write_checkpoint if options.smollm2 else build_small_model)(model)
        seeds = [0] * (options.rounds + 1) if options.known_tools else range(options.rounds + 1)
        found = measure(model, directory, seeds=seeds, concurrencies=concurrencies, arms=arms)
    columns = (
        "",
        "at a time",
        "steps/s",
        "ratio (95 %)",
        "first token, ms",
        "in masks",
        "CPU s/1,000 tokens",
        "ratio",
    )
    rows = [row(arm, many, found[arm, many], found[FREE, many]) for many in concurrencies for arm in arms]
    print(f"Interleaved; ratio: to the same requests unconstrained, by rounds\n\n{table(columns, rows)}")


def row(arm: str, concurrency: int, bursts: Sequence[Burst], baseline: Sequence[Burst]) -> list[str]:
    """Format an arm at one concurrency: medians over its rounds, and its ratio to the baseline's same rounds."""
    ratio = "1"
    if bursts is not baseline:
        mean, low, high = Ratio.of(paired([burst.step for burst in bursts], [burst.step for burst in baseline]))
        ratio = f"{mean:.3f} ({low:.3f} to {high:.3f})"
    steps = statistics.median(1 / burst.step for burst in bursts)
    first, masks, cpu = (statistics.median(found) for found in list(zip(*bursts, strict=True))[1:])
    times = f"{1e3 * first:.1f}", f"{100 * masks:.2f} %", f"{cpu:.2f}"
    more = statistics.median(own.cpu / other.cpu for own, other in zip(bursts, baseline, strict=True))
    return [arm, f"{concurrency}", f"{steps:.1f}", ratio, *times, f"{more:.3f}"]


def measure(
    model: Path, directory: Path, *, seeds: Sequence[int], concurrencies: Sequence[int], arms: Sequence[str]
) -> dict[tuple[str, int], list[Burst]]:
    """Send the same requests to every arm in turn, a round for each seed; return an arm's bursts at each concurrency.

    The first round warms the servers up and is not measured.
    """
    found: dict[tuple[str, int], list[Burst]] = {(arm, many): [] for arm in arms for many in concurrencies}
    with taking_turns(model, arms, _FLAGS, directory) as servers:
        for arm in arms:
            _timed(servers[arm], bodies_of(_ROWS, seeds[0]), _ROWS)
        for number, seed in enumerate(seeds[1:]):
            for many, arm in itertools.product(concurrencies, turned(arms, number)):
                bodies = bodies_of(max(many, _REQUESTS), seed)
                found[arm, many].append(_timed(servers[arm], bodies, many))
    return found


def bodies_of(count: int, seed: int) -> list[dict[str, Any]]:
    """Return the requests of a burst; a seed has its own tools.

    Of many requests, those with the longest expected calls are used: ``ignore_eos`` makes every request write the same
    number of tokens, and after the end of a turn constrained requests only repeat the stop, at almost no cost (two
    fifths of the tokens without this choice).
    """
    common = {"model": "kimi-k2", "temperature": 0, "max_tokens": _MAX_TOKENS, "ignore_eos": True}
    common |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    drawn = bundled_bodies(HELD_OUT, _DRAWN * count, seed)
    samples = sorted(drawn, key=lambda sample: len(json.dumps(sample["expected"])), reverse=True)
    bodies = []
    for number, sample in enumerate(samples[:count]):
        tools = extended(sample["tools"], _MOST_REQUESTS * seed + number)
        bodies.append(common | {"messages": sample["messages"], "tools": tools})
    return bodies


def _timed(server: VllmServer, bodies: Sequence[Mapping[str, Any]], concurrency: int) -> Burst:
    """Run a burst on a server that is suspended otherwise."""
    with running(server):
        before = cpu_seconds(server)
        burst = asyncio.run(_ask(server.url, bodies, concurrency))
        return burst._replace(cpu=1e3 * (cpu_seconds(server) - before) / (len(bodies) * _MAX_TOKENS))


async def _ask(url: str, bodies: Sequence[Mapping[str, Any]], concurrency: int) -> Burst:
    """Send a burst of requests; its CPU time is not measured yet."""
    loop = asyncio.get_running_loop()
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:

        async def step(body: Mapping[str, Any]) -> float:
            async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                if not answer.is_success:
                    raise RuntimeError(f"HTTP {answer.status_code}: {(await answer.aread())[:500]!r}")
                return step_time([(line, loop.time()) async for line in answer.aiter_lines()])

        before = parse_counters((await client.get("/metrics")).text, "")
        start = loop.time()
        steps = [
            statistics.median(await asyncio.gather(*map(step, bodies[at : at + concurrency])))
            for at in range(0, len(bodies), concurrency)
        ]
        seconds = loop.time() - start
        grown = growth(before, parse_counters((await client.get("/metrics")).text, ""))
    written = total(grown, "vllm:generation_tokens_total")
    if written != len(bodies) * _MAX_TOKENS:
        raise RuntimeError(f"{len(bodies)} requests wrote {written:.0f} tokens, not {_MAX_TOKENS} each")
    first = "vllm:time_to_first_token_seconds"
    masks = total(grown, "constrained_k2_mask_seconds_total") / seconds
    return Burst(statistics.mean(steps), total(grown, f"{first}_sum") / total(grown, f"{first}_count"), masks, 0.0)


def step_time(lines: Sequence[tuple[str, float]]) -> float:
    """Return the time between two tokens of a stream, given its lines and their times.

    The first chunks are left out unless only the last chunk follows them: parsers buffer incomplete text.
    """
    came: dict[int, float] = {}  # number of tokens written -> time
    for line, time in lines:
        if line.startswith("data: {"):
            written = json.loads(line.removeprefix("data: "))["usage"]["completion_tokens"]
            came.setdefault(max(1, written), time)  # the first chunk comes with the first token and reports 0
    many = max(came)
    few = min((count for count in came if _INTERVAL < count < many), default=min(came))
    return (came[many] - came[few]) / (many - few)


if __name__ == "__main__":
    main()
