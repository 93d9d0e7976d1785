"""One in-process vLLM engine in a process of its own: what it writes to given requests, as JSON.

It reads a file ``{"model": DIR, "engine": {…}, "batches": {NAME: [{"prompt": [ids], "params": {…}, "structured": {…}}, …]}}``
and writes ``{"runner": …, NAME: {"answers": [[{"ids": […], "reason": …, "text": …}, …], …], "metrics": {…}, "totals": {…}}}`` into
``job.out.json``, batch by batch: ``metrics`` are vLLM's counts of the batch, ``totals`` this package's. A request that is
refused or ends in an error has ``{"error": …}`` for its answer. ``runner`` is the class of the model runner.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.kit.warm import Forked

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
SMALL = {
    "trust_remote_code": True,
    "enforce_eager": True,
    "max_model_len": 4096,
    "max_num_batched_tokens": 4096,
    "max_num_seqs": 16,
    "disable_log_stats": False,
}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Start the engine and have it answer."""
    from vllm import LLM

    llm = LLM(job["model"], **(SMALL | job["engine"]))
    runner = type(llm.llm_engine.model_executor.driver_worker.worker.model_runner)
    done: dict[str, Any] = {"runner": f"{runner.__module__}.{runner.__name__}"}
    before = counts(llm)
    for name, requests in job["batches"].items():
        answers = answer(llm, requests)
        before, earlier = counts(llm), before
        done[name] = {"answers": answers} | {
            kind: {key: value - earlier[kind].get(key, 0) for key, value in found.items()}
            for kind, found in before.items()
        }
    return done


def counts(llm: Any) -> dict[str, dict[str, Any]]:
    """vLLM's metrics and this package's own counts so far."""
    metrics = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    return {"metrics": metrics, "totals": totals()}


def totals() -> dict[str, Any]:
    """This package's own counts so far; none before it is in use."""
    ours = sys.modules.get("constrained_k2.vllm_plugin.shared.counters")
    return {} if ours is None else dict(ours.engine_counters.snapshot()["totals"])


def answer(llm: Any, requests: list[Any]) -> list[Any]:
    """The answers to a batch, in the order of the requests."""
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import StructuredOutputsParams

    answers: list[Any] = [None] * len(requests)
    numbers: dict[str, int] = {}
    for number, request in enumerate(requests):
        given = dict(request["params"])
        if "structured" in request:
            given["structured_outputs"] = StructuredOutputsParams(**request["structured"])
        if "logit_bias" in given:  # JSON has no integer keys
            given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
        prompt = {"prompt_token_ids": request["prompt"]}
        try:
            (request_id,) = llm.enqueue(prompt, SamplingParams(**given), use_tqdm=False)
            numbers[request_id.rsplit("-", 1)[0]] = number  # vLLM puts eight random letters behind its number
        except (ValueError, VLLMValidationError) as error:
            answers[number] = {"error": str(error)}
    for output in llm.wait_for_completion(use_tqdm=False):
        answers[numbers[output.request_id]] = [
            {"ids": list(one.token_ids), "reason": one.finish_reason, "text": one.text} for one in output.outputs
        ]
    return answers


def run_in_its_own_process(job: Path, model: Path, engine: dict[str, Any], batches: dict[str, list[Any]]) -> Any:
    """Have a process do a job, and read what it wrote; ``job`` is its file, the log is written beside it."""
    job.write_text(json.dumps({"model": str(model), "engine": engine, "batches": batches}))
    log = job.with_suffix(".log")
    code = Forked(run_file, [str(job)], os.environ | ENVIRONMENT, log).wait()
    assert code == 0, log.read_text(errors="replace")[-4000:]
    return json.loads(job.with_suffix(".out.json").read_text())


def run_file(job: str) -> None:
    path = Path(job)
    path.with_suffix(".out.json").write_text(json.dumps(run(json.loads(path.read_text()))))
