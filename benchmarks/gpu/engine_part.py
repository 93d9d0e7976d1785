"""The part ``vllm``: whole engines, with CUDA graphs and eager, asynchronous and not, with and without drafts."""

import json
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu.engines import ENGINES, UNSUPPORTED, EngineCase
from benchmarks.gpu.parts import PartOptions
from benchmarks.gpu.processes import GRACE, run_limited
from benchmarks.gpu.ratios import ratio_of
from benchmarks.gpu.results import Cell, Recorder, Table

CONCURRENCIES = (1, 32, 256)
_TOKENS = 128  # of a timed request
_JUDGED = 48
_TIMED_SECONDS = 45.0  # for the rounds of a timed engine
_LAST_SECONDS = 8.0  # for an engine's last round and its end
_LEAST_SECONDS = 45.0  # an engine is not started with less
_MOST_SECONDS = 200.0  # of one engine
_FLAGS: dict[str, Any] = {"max_model_len": 4096, "max_num_seqs": max(CONCURRENCIES), "gpu_memory_utilization": 0.5}


@dataclass(frozen=True, slots=True)
class Engines:
    """The values that all engines of a run share.

    Attributes:
        model: The model.
        folder: Folder for jobs and logs.
        flags: Arguments of ``vllm.LLM``.
        concurrencies: Numbers of requests at a time.
        judged: Number of requests whose answers are judged.
        tokens: Tokens of a timed request.
        timed_seconds: Time for the rounds of a timed engine.
    """

    model: str
    folder: Path
    flags: dict[str, Any]
    concurrencies: tuple[int, ...] = CONCURRENCIES
    judged: int = _JUDGED
    tokens: int = _TOKENS
    timed_seconds: float = _TIMED_SECONDS


def measure(options: PartOptions, record: Recorder) -> None:
    """Run the engines until the time ends."""
    if options.interpret:
        record.not_run("whole engines", "they need a GPU")
        return
    if find_spec("vllm") is None:
        record.not_run("whole engines", "vLLM is not installed. Install this package with its extra [vllm]")
        return
    if not entry_points(group="vllm.general_plugins", name="constrained_k2"):
        record.not_run("whole engines", "vLLM does not find this package's plugin. Install it: pip install -e .")
        return
    folder = Path(options.output) / "gpu-engines"
    folder.mkdir(parents=True, exist_ok=True)
    flags = _FLAGS | ({"gpu_memory_utilization": 0.9} if options.model else {})
    engines = Engines(options.model or _random_model(options, folder, record), folder, flags)
    speeds: list[tuple[Cell, ...]] = []
    facts: list[tuple[Cell, ...]] = []
    for what, why in UNSUPPORTED:
        record.not_run(what, why)
    for case in ENGINES:
        left = min(_MOST_SECONDS, options.seconds - GRACE)
        if left < _LEAST_SECONDS:
            record.not_run(str(case), "the time was used up")
            continue
        record.say(str(case))
        found = run_engine(case, engines, left, record)
        facts += fact_rows(case, found)
        speeds += speed_rows(case, found)
    record_tables(record, facts, speeds, options.model)


def run_engine(case: EngineCase, engines: Engines, seconds: float, record: Recorder) -> dict[str, Any]:
    """Run one engine within a time, record its checks, and return its result."""
    name = "".join(character if character.isalnum() else "-" for character in str(case))
    path, log = engines.folder / f"{name}.json", engines.folder / f"{name}.log"
    out = path.with_suffix(".out.json")
    out.unlink(missing_ok=True)
    job = {
        "model": engines.model,
        "flags": engines.flags | case.flags,
        "limit": seconds - _LAST_SECONDS,
        "seconds": engines.timed_seconds,
        "timed": engines.concurrencies if case.timed else (),
        "tokens": engines.tokens,
        "judged": engines.judged,
    }
    path.write_text(json.dumps(job))
    command = [sys.executable, "-m", "benchmarks.gpu.engine_run", str(path)]
    ended = run_limited(command, limit=seconds, log=log, environment=case.environment)
    found: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {}
    judged = found.get("judged")
    if judged is not None:
        wrong = judged["wrong"]
        note = wrong[0] if wrong else f"{judged['answers']} answers, {judged['tokens']:,} tokens"
        record.check(f"{case}: every answer is valid", passed=not wrong, note=note)
    if case.asynchronous and not found.get("facts", {}).get("asynchronous", True):
        record.not_run(f"{case}: asynchronously", "vLLM's configuration turned asynchronous scheduling off")
    if not ended.in_time:
        record.not_run(f"the rest of {case}", f"it was ended after {seconds:.0f} s: see {log}")
    elif ended.code:
        record.check(f"{case}: the engine runs", passed=False, note=f"{_error(ended.log_end)}: see {log}")
    return found


def fact_rows(case: EngineCase, found: dict[str, Any]) -> list[tuple[Cell, ...]]:
    """Return an engine's row: what vLLM's configuration says, and its draft tokens."""
    if "facts" not in found:
        return []
    facts, drafts = found["facts"], found.get("drafts", {})
    asynchronous = "yes" if facts["asynchronous"] else "no"
    return [(str(case), facts["runner"], facts["graphs"], asynchronous, drafts.get("drafted"), drafts.get("accepted"))]


def speed_rows(case: EngineCase, found: dict[str, Any]) -> list[tuple[Cell, ...]]:
    """Return an engine's rows: one per number of requests."""
    rows: list[tuple[Cell, ...]] = []
    for requests, rates in found.get("timed", {}).items():
        if rates["with"]:
            ratio = ratio_of(rates["with"], rates["without"])
            interval = f"{ratio.low:.3f} to {ratio.high:.3f}"
            medians = (sorted(rates[name])[len(rates[name]) // 2] for name in ("with", "without"))
            rows.append((str(case), int(requests), *medians, f"{ratio.mean:.3f}", interval, len(rates["with"])))
    return rows


def record_tables(
    record: Recorder, facts: list[tuple[Cell, ...]], speeds: list[tuple[Cell, ...]], model: str | None
) -> None:
    """Record both tables, if they have rows."""
    size = f"Model: {model}" if model else "A random model of two small layers: the host's share of a step is large"
    if speeds:
        heads = ("", "requests", "with", "without", "ratio", "95 %", "rounds")
        note = (
            "Every constrained row is inside a call. Medians of the rounds; the ratio is the geometric mean of the "
            f"rounds', its interval a bootstrap over them. {size}"
        )
        record.table(Table("Steps a second, with and without a constraint", heads, tuple(speeds), note))
    if facts:
        columns = ("", "runner", "CUDA graphs", "asynchronous", "drafted", "accepted")
        record.table(Table("Engines, by vLLM's own configuration", columns, tuple(facts)))


def _random_model(options: PartOptions, folder: Path, record: Recorder) -> str:
    """Build a small model, over the real vocabulary if there is one."""
    from constrained_k2.testing import build_model

    tokenizer = Path(options.shared) / "kimi_k2" / "tokenizer"
    real = tokenizer if tokenizer.is_dir() else None
    record.say(f"a random model with {'the real' if real else 'a small'} vocabulary")
    return str(build_model(folder / "model", arch="llama", tokenizer=real))


def _error(log_end: str) -> str:
    """Return the last line of a log that looks like an error, else its last line."""
    lines = [line.strip() for line in log_end.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "it wrote no error")
