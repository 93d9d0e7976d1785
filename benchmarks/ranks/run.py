"""Sends the same greedy requests to servers of several topologies, and judges the answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.ranks.topologies import TOPOLOGIES
from benchmarks.servers.harness import FLOAT32, SERVERS, answers
from constrained_k2.evaluation.answer import Record, read_whole
from constrained_k2.evaluation.judge import FORM, judge
from constrained_k2.evaluation.sample import Sample, bundled_bodies, read_sample
from constrained_k2.evaluation.server import with_settings
from scripts.small_model.shipped import HELD_OUT

_MAX_TOKENS = 400
_RESERVE = 200  # finish reserve in tokens: without it the random model does not end its calls

STOCK = "vLLM without the package"
ARMS = {STOCK: "stock", "structured_output": "structured_output", "logits_processor": "logits_processor"}
"""Name -> its server."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one server."""

    ids: tuple[tuple[int, ...], ...]  # the token ids of each answer; empty for a failed request
    calls: int  # calls in the answers that `max_tokens` did not cut
    cut: int  # answers that it cut
    problems: tuple[str, ...]  # invalid calls and failed requests, one line each


def greedy_samples(count: int) -> list[Sample]:
    """Return held-out requests; every second one requires a call."""
    bodies = bundled_bodies(HELD_OUT, count)
    return [
        read_sample(body | {"tool_choice": "required" if number % 2 else "auto"}, number)
        for number, body in enumerate(bodies)
    ]


def ask_all(url: str, samples: Sequence[Sample]) -> Answers:
    """Send the requests, with the same settings to every arm."""
    common = {
        "model": "kimi-k2",
        "temperature": 0,
        "max_tokens": _MAX_TOKENS,
        "return_token_ids": True,
        "vllm_xargs": {"constrained_k2_finish_reserve": _RESERVE},
    }
    return judged(samples, answers(url, [sample.body | common for sample in samples]))


def judged(samples: Sequence[Sample], found: Sequence[tuple[int, Any]]) -> Answers:
    """Judge answers, each its HTTP status and JSON, by their form: names, ids and arguments of their calls."""
    ids, problems = [], []
    calls = cut = 0
    for sample, (status, answer) in zip(samples, found, strict=True):
        if status != 200:
            ids.append(())
            problems.append(f"#{sample.number}: HTTP {status}: {str(answer)[:200]}")
            continue
        ids.append(tuple(answer["choices"][0]["token_ids"]))
        verdict = judge(sample, Record.of(read_whole(answer)[0]))
        calls += verdict.counts.calls
        cut += verdict.counts.truncated
        wrong = (problem for problem in verdict.problems if problem.partition(":")[0] in FORM)
        problems += (f"#{sample.number}: {problem}" for problem in wrong)
    return Answers(tuple(ids), calls, cut, tuple(problems))


def measure(
    model: Path, directory: Path, samples: Sequence[Sample], topology: str, *, is_random: bool
) -> dict[str, Answers]:
    """Send the requests to a server of a topology with each arm in turn; a random model means none of its calls."""
    found = {}
    for number, (arm, server) in enumerate(ARMS.items()):
        flags, environment = SERVERS[server]
        if is_random and arm != STOCK:
            flags = with_settings(flags, undeclared_calls="nearest")
        log = directory / f"{number}-{topology.replace(' ', '-')}.log"
        with TOPOLOGIES[topology].server(model, (*flags, FLOAT32), log=log, environment=environment) as running:
            found[arm] = ask_all(running.url, samples)
        print(f"{topology}, {arm}: {found[arm].calls} calls, {len(found[arm].problems)} problems")
    return found
