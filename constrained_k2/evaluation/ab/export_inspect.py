"""Exports the answers of an A/B run as logs for the viewer of Inspect (inspect_ai), one per arm.

A request is a sample, a repetition an epoch. Each answer has two scores, 0 or 1: ``right`` (nothing is wrong) and
``in_form`` (no error that a constraint rules out). Source of the format: inspect_ai 0.3.285, ``EvalLog`` (version 2).
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from constrained_k2.evaluation.ab.results import ArmResult, Results
from constrained_k2.evaluation.answer import SUCCESS, Record
from constrained_k2.evaluation.judge import Judgement, decode_arguments, judge
from constrained_k2.evaluation.sample import Sample

_TASK = "constrained-k2-ab"
_SCORES = ("right", "in_form")
_MAX_DEPTH = 64  # of arguments; Inspect's reader refuses logs that are nested deeper than 200
_ROLES = {"assistant": "assistant", "developer": "system", "function": "tool", "system": "system", "tool": "tool"}
_STOP_REASONS = {"stop": "stop", "length": "max_tokens", "tool_calls": "tool_calls", "content_filter": "content_filter"}


def write_inspect_logs(results: Results, folder: Path) -> list[Path]:
    """Write the log of each arm into a folder, which is made if needed; return the logs' paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = list[Path]()
    for name, arm in results.arms.items():
        log = _log(results, arm)
        begun = log["eval"]["created"].replace(":", "-")  # a name that does not begin with a time is not listed
        path = folder / f"{begun}_{_TASK}_{name}.json"
        path.write_text(json.dumps(log, ensure_ascii=False), encoding="utf-8", errors="replace")  # lone surrogates
        paths.append(path)
    return paths


def _log(results: Results, result: ArmResult) -> dict[str, Any]:
    directory, arm = results.directory, result.arm
    records = list(directory.records(arm.name))
    samples = [_sample(results, directory.sample(record.key), record, arm.model) for record in records]
    times = [_time(min(record.started for record in records)), _time(max(map(_ended, records)))]
    scores = []
    for name in _SCORES:
        share = sum(sample["scores"][name]["value"] for sample in samples) / len(samples)
        metrics = {"accuracy": {"name": "accuracy", "value": share}}
        scores.append({"name": name, "scorer": name, "scored_samples": len(samples), "metrics": metrics})
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "created": times[0],
            "task": f"{_TASK}: {arm.name}",
            "dataset": {"name": directory.source, "samples": directory.samples},
            "model": arm.model or "default",
            "model_base_url": arm.url,
            "model_generate_config": {"temperature": directory.sampling.temperature, "seed": directory.sampling.seed},
            "config": {"epochs": directory.sampling.repetitions},
            "metadata": {"arm": arm.name, "added to requests": arm.added},
        },
        "results": {
            "total_samples": directory.answers,
            "completed_samples": sum(record.status == SUCCESS for record in records),
            "scores": scores,
        },
        "stats": {"started_at": times[0], "completed_at": times[1]},
        "samples": samples,
    }


def _sample(results: Results, sample: Sample, record: Record, model: str) -> dict[str, Any]:
    judgement = judge(sample, record, results.directory.wire_format)
    asked, answer = [_message(each) for each in sample.body["messages"]], _answer(record)
    expected = "" if sample.expected is None else json.dumps([call.to_json() for call in sample.expected])
    found = {
        "id": sample.number,
        "epoch": record.repetition + 1,
        "input": asked,
        "target": expected,
        "messages": [*asked, answer],
        "output": {
            "model": model or "default",
            "choices": [{"message": answer, "stop_reason": _STOP_REASONS.get(record.finish_reason, "unknown")}],
            "usage": _usage(record),
            "time": record.duration_ms / 1000,
        },
        "scores": dict(_scores(judgement)),
        "metadata": {
            "category": sample.category,
            # As text: Inspect's reader refuses a log that is nested as deeply as a schema may be.
            "request": json.dumps({name: value for name, value in sample.body.items() if name != "messages"}),
            "declined": record.declined,
            "text of the calls": [list(call) for call in record.calls],
        },
        "started_at": _time(record.started),
        "completed_at": _time(_ended(record)),
        "total_time": record.duration_ms / 1000,
    }
    if record.status != SUCCESS:
        found["error"] = {"message": f"{record.failure}: {record.error}", "traceback": "", "traceback_ansi": ""}
    return found


def _scores(judgement: Judgement) -> Iterator[tuple[str, dict[str, Any]]]:
    why = "\n".join(judgement.problems)
    for name in _SCORES:
        yield name, {"value": getattr(judgement.counts, name), "answer": judgement.kind, "explanation": why}


def _answer(record: Record) -> dict[str, Any]:
    parts = [{"type": "reasoning", "reasoning": record.reasoning}] if record.reasoning else []
    calls = [_call(*call) for call in record.calls]
    content: Any = [*parts, {"type": "text", "text": record.content}] if parts else record.content
    return {"role": "assistant", "content": content, "tool_calls": calls or None, "source": "generate"}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """A message of a request, which may have any shape: an unknown role is a user, what is not text becomes JSON."""
    role = _ROLES.get(str(message.get("role")), "user")
    found: dict[str, Any] = {"role": role, "content": _text(message.get("content"))}
    if role == "assistant":
        calls = [(call.get("id"), call.get("function") or {}) for call in message.get("tool_calls") or ()]
        found["tool_calls"] = [
            _call(_text(call_id), _text(each.get("name")), _text(each.get("arguments", "{}")))
            for call_id, each in calls
        ]
    elif role == "tool":
        found |= {"tool_call_id": _text(message.get("tool_call_id")), "function": _text(message.get("name"))}
    return found


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(map(_text, content))
    if isinstance(content, dict) and isinstance(content.get("text"), str):
        return str(content["text"])
    return "" if content is None else content if isinstance(content, str) else json.dumps(content)


def _call(call_id: str, name: str, text: str) -> dict[str, Any]:
    arguments, problem = decode_arguments(text)
    if arguments is not None and _is_deeper(arguments, _MAX_DEPTH):
        arguments, problem = None, f"nested deeper than {_MAX_DEPTH}"
    call = {"id": call_id, "function": name, "type": "function", "arguments": arguments or {}}
    return call if arguments is not None else call | {"parse_error": f"{problem}: {text[:1000]}"}


def _is_deeper(value: Any, depth: int) -> bool:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(depth == 0 or _is_deeper(child, depth - 1) for child in children)


def _usage(record: Record) -> dict[str, int]:
    prompt, completion = record.prompt_tokens or 0, record.completion_tokens or 0
    return {"input_tokens": prompt, "output_tokens": completion, "total_tokens": prompt + completion}


def _ended(record: Record) -> float:
    return record.started + record.duration_ms / 1000


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
