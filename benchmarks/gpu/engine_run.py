"""Runs one vLLM engine in this process: ``python -m benchmarks.gpu.engine_run JOB.json`` writes ``JOB.out.json``.

The job is ``{"model": NAME, "flags": {…}, "judged": N, "timed": [N, …], "tokens": N, "seconds": S, "limit": S}``.
``seconds`` is the time of all timed rounds, and after ``limit`` none begins. The result is written after each stage, so
that an engine that is ended leaves what it has measured.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind

from benchmarks.gpu.engine_requests import LONG_CALL, MAX_TOKENS, extra_args, judged_bodies, problem
from constrained_k2 import Vocabulary, render_prompt

_MAX_ROUNDS = 30
_WARM_UP = 2  # rounds that are not counted


class Engine:
    """One engine, its vocabulary, and a count of requests."""

    def __init__(self, model: str, flags: Mapping[str, Any]) -> None:
        self.llm = LLM(model, trust_remote_code=True, disable_log_stats=False, **flags)
        self.tokenizer = self.llm.get_tokenizer()
        self.vocabulary = Vocabulary.from_tokenizer(self.tokenizer)
        self._count = 0

    def facts(self) -> dict[str, Any]:
        """Return what the engine really does, by vLLM's own configuration."""
        config: Any = self.llm.llm_engine.vllm_config
        return {
            "runner": "V2" if config.use_v2_model_runner else "V1",
            "asynchronous": bool(config.scheduler_config.async_scheduling),
            "graphs": str(config.compilation_config.cudagraph_mode).removeprefix("CUDAGraphMode."),
        }

    def prompt(self, body: Mapping[str, Any]) -> list[int]:
        """Render a request."""
        return list(render_prompt(body, self.tokenizer).ids)

    def write(self, requests: Sequence[tuple[list[int], SamplingParams]]) -> tuple[list[list[int]], float]:
        """Answer requests at once; return their tokens, and the tokens a second after each has its first one."""
        engine: Any = self.llm.llm_engine
        written: dict[str, list[int]] = {}
        for prompt, params in requests:
            self._count += 1
            written[str(self._count)] = []
            engine.add_request(str(self._count), {"prompt_token_ids": prompt}, params)
        start, before = 0.0, 0
        while engine.has_unfinished_requests():
            for output in engine.step():
                written[output.request_id] += output.outputs[0].token_ids
            if not start and all(written.values()):
                start, before = time.perf_counter(), sum(map(len, written.values()))
        seconds = time.perf_counter() - start
        return list(written.values()), (sum(map(len, written.values())) - before) / seconds

    def accepted(self) -> dict[str, float]:
        """Return vLLM's counts of draft tokens."""
        names = {"vllm:spec_decode_num_draft_tokens": "drafted", "vllm:spec_decode_num_accepted_tokens": "accepted"}
        return {
            names[metric.name]: float(getattr(metric, "value", 0.0))
            for metric in self.llm.get_metrics()
            if metric.name in names
        }


def params(extra: dict[str, Any] | None, tokens: int, *, ignore_eos: bool) -> SamplingParams:
    """Return sampling parameters whose outputs come step by step."""
    return SamplingParams(
        max_tokens=tokens,
        temperature=1.0,
        ignore_eos=ignore_eos,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args=extra,
    )


def judge(engine: Engine, count: int) -> dict[str, Any]:
    """Have the engine answer the judged requests at once, and list what is wrong."""
    bodies = judged_bodies(count)
    requests = [
        (engine.prompt(body), params(extra_args(body, ends=True), MAX_TOKENS, ignore_eos=False)) for body in bodies
    ]
    answers, _ = engine.write(requests)
    found = [problem(body, ids, engine.vocabulary) for body, ids in zip(bodies, answers, strict=True)]
    return {
        "answers": len(answers),
        "tokens": sum(map(len, answers)),
        "wrong": [f"request {number}: {wrong}" for number, wrong in enumerate(found) if wrong is not None],
    }


def rounds(engine: Engine, requests: int, tokens: int, seconds: float) -> dict[str, list[float]]:
    """Measure steps a second with and without a constraint, in turns; each round begins with the other one."""
    prompt = engine.prompt(LONG_CALL)
    found: dict[str, list[float]] = {"with": [], "without": []}
    extras = {"with": extra_args(LONG_CALL, ends=False), "without": None}
    end = time.monotonic() + seconds
    for number in range(-_WARM_UP, _MAX_ROUNDS):
        if number > 1 and time.monotonic() > end:
            break
        for name in ("with", "without") if number % 2 else ("without", "with"):
            given = params(extras[name], tokens, ignore_eos=True)
            _, rate = engine.write([(prompt, given)] * requests)
            if number >= 0:
                found[name].append(rate / requests)
    return found


def main(path: Path) -> None:
    """Run the job of a file."""
    job = json.loads(path.read_text())
    out = path.with_suffix(".out.json")
    limit = time.monotonic() + job["limit"]
    result: dict[str, Any] = {}
    engine = Engine(job["model"], job["flags"])

    def keep(name: str, value: Any) -> None:
        result[name] = value
        part = out.with_suffix(".part")
        part.write_text(json.dumps(result))
        part.replace(out)

    keep("facts", engine.facts())
    keep("judged", judge(engine, job["judged"]))
    keep("drafts", engine.accepted())
    timed: dict[str, Any] = {}
    end = min(limit, time.monotonic() + job["seconds"])
    for position, requests in enumerate(job["timed"]):
        left = (end - time.monotonic()) / (len(job["timed"]) - position)
        timed[str(requests)] = rounds(engine, requests, job["tokens"], left)
        keep("timed", timed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
