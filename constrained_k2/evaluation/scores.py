"""What an answer is worth: a pure function over its record."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import jsonschema

from constrained_k2.evaluation.samples import Sample
from constrained_k2.format import ToolCallFormat


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one sample, streamed or not.

    Attributes:
        finish_reason: The server's; ``error`` if it refused.
        content: The answer's text.
        calls: ``(id, name, arguments)`` of every tool call.
        error: The server's message, if it refused.
    """

    finish_reason: str
    content: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Score:
    """Counts over answers; the scores of several add up.

    Attributes:
        requests: Answers looked at.
        finished: Of these, those that ended by themselves, not by ``max_tokens``.
        due: Finished answers in which a call was asked for (required or named).
        served: Of these, those that hold calls, all of them right, and no more than allowed.
        calls: Calls in finished answers.
        declared: Of these, those that name a tool of the request.
        valid: Of these, those whose arguments the tool's schema accepts.
        numbered: Of all calls, those whose id is ``functions.NAME:INDEX`` with the index that is due.
        unasked: Finished answers that hold more calls than the request allows.
    """

    requests: int = 0
    finished: int = 0
    due: int = 0
    served: int = 0
    calls: int = 0
    declared: int = 0
    valid: int = 0
    numbered: int = 0
    unasked: int = 0
    problems: tuple[str, ...] = field(default=(), repr=False)

    def __add__(self, other: "Score") -> "Score":
        return Score(*(getattr(self, name) + getattr(other, name) for name in Score.__slots__))


def score(sample: Sample, answer: Answer) -> Score:
    """Judge one answer by its request."""
    if answer.finish_reason in {"length", "error"}:
        return Score(requests=1, problems=(f"#{sample.number}: {answer.error}",) if answer.error else ())
    schemas = {
        tool["function"]["name"]: tool["function"].get("parameters", {"type": "object"})
        for tool in sample.body["tools"]
    }
    declared = [(name, arguments) for _, name, arguments in answer.calls if name in schemas]
    problems = [f"#{sample.number}: {name!r} is not declared" for _, name, _ in answer.calls if name not in schemas]
    valid = 0
    for name, arguments in declared:
        if problem := _invalid(arguments, schemas[name]):
            problems.append(f"#{sample.number}: {name}: {problem}")
        else:
            valid += 1
    numbered = sum(
        call_id == ToolCallFormat.call_id(name, sample.first_index + position)
        if not ToolCallFormat.name_problem(name)
        else False
        for position, (call_id, name, _) in enumerate(answer.calls)
    )
    count = len(answer.calls)
    unasked = sample.max_calls is not None and count > sample.max_calls
    due = sample.choice in {"required", "named"}
    right = 0 < count == valid == numbered and not unasked
    if due and not right and not problems:
        problems.append(f"#{sample.number}: a call was due, {count} came")
    return Score(
        1, 1, int(due), int(due and right), count, len(declared), valid, numbered, int(unasked), tuple(problems)
    )


def total(scores: Iterable[Score]) -> Score:
    """The sum of scores."""
    return sum(scores, Score())


def _invalid(arguments: str, schema: Any) -> str:
    """Why the arguments are not an instance of the schema; empty if they are."""
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(arguments))
    except json.JSONDecodeError as error:
        return f"not JSON: {error}"
    except jsonschema.ValidationError as error:
        return error.message
    return ""
