"""How the stand-in does on its held-out samples, on a real server, unconstrained and constrained."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, TextIO

from constrained_k2.evaluation.client import UNCONSTRAINED, ask_all
from constrained_k2.evaluation.samples import Sample
from constrained_k2.evaluation.scores import Answer, score
from constrained_k2.evaluation.standin.dialogs import held_out_samples

ARMS: Mapping[str, Mapping[str, Any]] = {"unconstrained": UNCONSTRAINED, "constrained": {}}
"""Arm -> the extra body of its requests."""

_Pair = tuple[Mapping[str, Any], Answer]


def measure_arms(
    url: str,
    *,
    count: int,
    seed: int,
    temperature: float,
    on_answer: Callable[[str, Mapping[str, Any], Answer], None] = lambda *_: None,
) -> dict[str, dict[str, float]]:
    """Ask both arms the same held-out samples.

    Args:
        url: Of a server with the stand-in, without ``/v1``.
        count: How many samples.
        seed: Of the samples.
        temperature: Of the sampling.
        on_answer: Takes every arm, sample and answer.

    Returns:
        Arm -> its figures, see :func:`figures`.
    """
    lines = list(held_out_samples(count, seed))
    samples = [
        Sample(number, "auto", {key: line[key] for key in ("messages", "tools")}, stream=False, first_index=_made(line))
        for number, line in enumerate(lines)
    ]
    found = {}
    for arm, extra_body in ARMS.items():
        asked = ask_all(url, samples, model="kimi-k2", temperature=temperature, max_tokens=400, extra_body=extra_body)
        answers = asyncio.run(asked)
        for line, answer in zip(lines, answers, strict=True):
            on_answer(arm, line, answer)
        found[arm] = figures(zip(lines, answers, strict=True), samples)
    return found


def figures(pairs: Iterable[_Pair], samples: Iterable[Sample]) -> dict[str, float]:
    """An arm's figures.

    Returns:
        Counts (``requests``, ``finished``, ``calls``) and shares: ``schema_accuracy`` (calls that name a declared tool
        with arguments of its schema), ``tool_call_f1`` (whether calls came where they were expected), ``calls_matched``
        (expected calls made with exactly the expected arguments), ``arguments_matched`` (expected arguments given
        so), ``optional_recall`` (expected optional arguments that were given, whatever their value).
    """
    n: Counter[str] = Counter()
    for (line, answer), sample in zip(pairs, samples, strict=True):
        judged = score(sample, answer)
        expected, called = line["expected"]["calls"], bool(answer.calls)
        n.update(requests=1, finished=judged.finished, calls=judged.calls, valid=judged.valid)
        n.update(hit=called and bool(expected), called=called, due=bool(expected))
        required = {
            tool["function"]["name"]: tool["function"].get("parameters", {}).get("required", [])
            for tool in line["tools"]
        }
        for position, call in enumerate(expected):
            _, name, text = answer.calls[position] if position < len(answer.calls) else ("", "", "")
            given = _arguments(text) if name == call["name"] else {}
            n.update(expected=1, matched=name == call["name"] and given == call["arguments"])
            for key, value in call["arguments"].items():
                n.update(arguments=1, right=key in given and given[key] == value)
                if key not in required[call["name"]]:
                    n.update(optional=1, recalled=key in given)
    return {
        "requests": n["requests"],
        "finished": n["finished"],
        "calls": n["calls"],
        "schema_accuracy": _share(n["valid"], n["calls"]),
        "tool_call_f1": _share(2 * n["hit"], n["called"] + n["due"]),
        "calls_matched": _share(n["matched"], n["expected"]),
        "arguments_matched": _share(n["right"], n["arguments"]),
        "optional_recall": _share(n["recalled"], n["optional"]),
    }


def _made(line: Mapping[str, Any]) -> int:
    """How many calls the history holds."""
    return sum(len(message.get("tool_calls", ())) for message in line["messages"])


def _arguments(text: str) -> dict[str, Any]:
    """A call's arguments; none if they are no JSON object."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def write_answer(file: TextIO, arm: str, line: Mapping[str, Any], answer: Answer) -> None:
    """Write one answer as a line of JSON."""
    record = {"arm": arm, "category": line["category"], "request": line["messages"][-1]["content"]}
    record |= {"expected": line["expected"]["calls"], "answer": asdict(answer)}
    file.write(json.dumps(record, ensure_ascii=False) + "\n")
