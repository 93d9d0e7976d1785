"""One request that the baseline answered wrongly in form and the constraint set right, as every arm answered it."""

from collections.abc import Iterator
from typing import Any

from constrained_k2.evaluation.ab.judge import FORM, judge
from constrained_k2.evaluation.ab.records import Record, read_records
from constrained_k2.evaluation.ab.report.text import visible
from constrained_k2.evaluation.ab.results import Example, Results

_LONGEST = 160  # characters of one text


def contrast(results: Results) -> list[str]:
    """Lines of plain text for a terminal; none if there is no such request among the examples kept."""
    constrained = next((name for name, result in results.arms.items() if result.arm.is_constrained), None)
    if constrained is None:
        return []
    kept = results.arms[results.baseline].examples
    candidates = [example for kind in sorted(kept) if kind in FORM for example in kept[kind]]
    keys = {(example.record.key, example.record.repetition) for example in candidates}
    found = {name: _records(results, name, keys) for name in results.arms}
    for example in candidates:
        key = example.record.key, example.record.repetition
        answer = found[constrained].get(key)
        if answer is not None and judge(example.sample, answer).counts.right:
            return list(_lines(example, {name: records[key] for name, records in found.items() if key in records}))
    return []


def _records(results: Results, arm: str, keys: set[tuple[str, int]]) -> dict[tuple[str, int], Record]:
    path = results.directory.records_path(arm)
    records = (record for record in read_records(path) if isinstance(record, Record))
    return {key: record for record in records if (key := (record.key, record.repetition)) in keys}


def _lines(example: Example, answers: dict[str, Record]) -> Iterator[str]:
    sample = example.sample
    yield f"request {sample.number}: {_short(sample.body['messages'][-1].get('content'))}"
    for name, record in answers.items():
        problems = judge(sample, record).problems
        yield f"{name}: {_short(problems[0].partition(': ')[2] or problems[0]) if problems else 'right'}"
        if record.content:
            yield f"  says  {_short(record.content)}"
        for call_id, _, arguments in record.calls:
            yield f"  calls {_short(call_id)} {_short(arguments)}"


def _short(text: Any) -> str:
    shown = visible(str(text)).replace("\n", "␊")
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"
