"""What one answer is worth: a pure function of the sample and the record."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import jsonschema
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

from constrained_k2.evaluation.ab.matching import Arguments, optional_arguments, pairs
from constrained_k2.evaluation.ab.records import FAILURES, SUCCESS, Record
from constrained_k2.evaluation.ab.sample import Sample
from constrained_k2.evaluation.ab.vendor_verifier import is_successful_tool_call
from constrained_k2.format import ToolCallFormat

KINDS: Mapping[str, str] = {
    **FAILURES,
    "truncated": "cut off by max_tokens",
    "undeclared": "a call of a function that is not declared",
    "invalid_json": "arguments that are no JSON object",
    "invalid_arguments": "arguments that the schema does not accept",
    "unjudged": "arguments of a schema that jsonschema cannot use",
    "missing_id": "a call without an id",
    "wrong_id": "an id that is not functions.NAME:INDEX, or not the index that is due",
    "too_many_calls": "more calls than the request allows",
    "missing_call": "no call where one is due",
    "unexpected_call": "a call where none is due",
    "wrong_tool": "not the expected functions",
    "wrong_arguments": "the expected functions with other arguments",
}
"""Why an answer is not right, what outweighs the others first."""

FORM = frozenset({"undeclared", "invalid_json", "invalid_arguments", "missing_id", "wrong_id", "too_many_calls"})
"""The kinds that a constraint rules out."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What is counted of one answer; every field is a number, and those of several answers add up.

    Attributes:
        requests: 1.
        success: An answer came whole.
        finish_tool_calls: Its ``finish_reason`` is ``tool_calls``; the vendor verifier's
            ``count_finish_reason_tool_calls``.
        successful_tool_call: The verifier's ``count_successful_tool_call``.
        tp: ``tool_calls``, as in the reference answer.
        fp: ``tool_calls``, unlike it.
        fn: Another ``finish_reason``, unlike it.
        tn: Another, as in it.
        truncated: Cut off by ``max_tokens``. Its calls are not counted below.
        calls: Calls.
        declared: Of these, those of a declared function.
        decoded: Of these, those whose arguments are a JSON object.
        judged: Of these, those whose schema jsonschema can use, and those that are no object.
        valid: Of these, those whose arguments the schema accepts, formats included.
        numbered: Of all calls, those whose id is ``functions.NAME:INDEX`` with the index that is due.
        empty_calls: Calls of declared functions that have no ``parameters``, or empty ones.
        empty_valid: Of these, the valid ones.
        awkward_calls: Calls of declared functions with a hyphen or a dot in their name.
        awkward_right: Of these, those that are valid and numbered.
        due: A call had to come (``required``, or a named function), and the answer was not cut off.
        served: Of these, those where calls came, right in form.
        in_form: The answer came whole and nothing about its form is wrong.
        expected: The calls of a right answer are known, and the answer was not cut off.
        tool_match: Of these, the same functions were called.
        argument_match: Of these, with right arguments.
        ordered: Of all with expected calls, those with two or more.
        order_match: Of these, the functions came in the expected order.
        optional_due: Optional arguments that a right answer writes.
        optional_written: Of these, those that were written.
        right: Nothing at all is wrong.
    """

    requests: int = 0
    success: int = 0
    finish_tool_calls: int = 0
    successful_tool_call: int = 0
    tp: int = 0
    fp: int = 0
    fn: int = 0
    tn: int = 0
    truncated: int = 0
    calls: int = 0
    declared: int = 0
    decoded: int = 0
    judged: int = 0
    valid: int = 0
    numbered: int = 0
    empty_calls: int = 0
    empty_valid: int = 0
    awkward_calls: int = 0
    awkward_right: int = 0
    due: int = 0
    served: int = 0
    in_form: int = 0
    expected: int = 0
    tool_match: int = 0
    argument_match: int = 0
    ordered: int = 0
    order_match: int = 0
    optional_due: int = 0
    optional_written: int = 0
    right: int = 0


COLUMNS = tuple(field.name for field in fields(Counts))
"""The names of the counts, in their order."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One answer, judged.

    Attributes:
        counts: For figures.
        kind: Why it is not right, the first of :data:`KINDS` that applies; empty if it is.
        problems: ``kind: what exactly``, all of them.
    """

    counts: Counts
    kind: str = ""
    problems: tuple[str, ...] = ()


def judge(sample: Sample, record: Record) -> Judgement:
    """Judge one answer."""
    if record.status != SUCCESS:
        return Judgement(Counts(requests=1), record.failure, (f"{record.failure}: {record.error}",))
    values = {"requests": 1, "success": 1} | _as_the_verifier_counts(sample, record)
    if record.finish_reason == "length":
        problem = f"truncated: cut off by max_tokens after {record.completion_tokens or 'an unknown number of'} tokens"
        return Judgement(Counts(**values | {"truncated": 1}), "truncated", (problem,))
    problems: list[str] = []
    calls: list[tuple[str, Arguments]] = []
    tools = sample.tools
    for place, (call_id, name, text) in enumerate(record.calls):
        found, arguments, wrong = _judge_call(tools, name, text)
        due_id = _due_id(name, sample.first_index + place)
        is_numbered = call_id == due_id
        if not is_numbered:
            words = (
                f"wrong_id: {call_id!r}, not {due_id!r}" if call_id else f"missing_id: the call of {name!r} has none"
            )
            wrong = [*wrong, words]
        for column, count in (found | {"numbered": int(is_numbered)}).items():
            values[column] = values.get(column, 0) + count
        if name in tools and ("-" in name or "." in name):
            values["awkward_calls"] = values.get("awkward_calls", 0) + 1
            values["awkward_right"] = values.get("awkward_right", 0) + int(is_numbered and bool(found.get("valid")))
        problems += wrong
        calls.append((name, arguments))
    if sample.max_calls is not None and len(calls) > sample.max_calls:
        problems.append(f"too_many_calls: {len(calls)} of at most {sample.max_calls}")
    values["in_form"] = int(not problems)
    if sample.choice in {"required", "named"}:
        values |= {"due": 1, "served": int(bool(calls) and not problems)}
    problems += _held_against_expectation(sample, calls, values)
    order = {kind: number for number, kind in enumerate(KINDS)}
    kind = min((problem.partition(":")[0] for problem in problems), key=order.__getitem__, default="")
    return Judgement(Counts(**values | {"right": int(not problems)}), kind, tuple(problems))


def _as_the_verifier_counts(sample: Sample, record: Record) -> dict[str, int]:
    calls = record.finish_reason == "tool_calls"
    values = {"finish_tool_calls": int(calls)}
    if calls:
        values["successful_tool_call"] = int(is_successful_tool_call(record.calls, sample.tools))
    # For a named function the reason says nothing: OpenAI's API and vLLM end such an answer with "stop".
    if sample.should_call is not None and (sample.official is not None or sample.choice != "named"):
        values[("tp" if calls else "fn") if sample.should_call else ("fp" if calls else "tn")] = 1
    return values


def _judge_call(tools: Mapping[str, Any], name: str, text: str) -> tuple[dict[str, int], Arguments, list[str]]:
    """Counts of one call, its arguments if they are an object, and what is wrong with it."""
    arguments, problem = _decoded(text)
    counts = {"calls": 1}
    if name not in tools:
        return counts, arguments, [f"undeclared: {name!r}"]
    schema = tools[name]
    is_empty = schema is None or schema == {}
    counts |= {"declared": 1, "decoded": int(arguments is not None), "judged": 1, "empty_calls": int(is_empty)}
    if arguments is None:
        return counts, None, [f"invalid_json: {name}: {problem}"]
    try:
        problem = _invalid(arguments, {"type": "object"} if is_empty else schema)
    except Exception as error:  # noqa: BLE001 - a foreign schema may trip jsonschema in any way
        return counts | {"judged": 0}, arguments, [f"unjudged: {name}: {type(error).__name__}: {error}"[:400]]
    if problem:
        return counts, arguments, [f"invalid_arguments: {name}: {problem}"]
    return counts | {"valid": 1, "empty_valid": int(is_empty)}, arguments, []


def _decoded(text: str) -> tuple[Arguments, str]:
    """The object that the text is; None, and why, if it is none."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return None, str(error)
    return (value, "") if isinstance(value, dict) else (None, f"{type(value).__name__}, not an object")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _invalid(arguments: Mapping[str, Any], schema: Any) -> str:
    """Why the schema does not accept the arguments; empty if it does. Formats are checked as far as jsonschema can."""
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    checker = validator(schema, registry=REGISTRY, format_checker=validator.FORMAT_CHECKER)
    error = next(checker.iter_errors(arguments), None)
    return "" if error is None else f"{error.json_path}: {error.message}"[:400]


def _due_id(name: str, index: int) -> str | None:
    """The id that a call must have; None for what a model wrote as a name and is none."""
    return None if ToolCallFormat.name_problem(name) else ToolCallFormat.call_id(name, index)


def _held_against_expectation(sample: Sample, calls: list[tuple[str, Arguments]], values: dict[str, int]) -> list[str]:
    """Count what was expected and came; what did not."""
    if sample.should_call and not calls:
        problems = ["missing_call: none came"]
    elif sample.should_call is False and calls:
        problems = [f"unexpected_call: {', '.join(name for name, _ in calls)}"[:400]]
    else:
        problems = []
    if not sample.expected:
        return problems
    names, wanted = [name for name, _ in calls], [call.name for call in sample.expected]
    same = sorted(names) == sorted(wanted)
    all_right = same and None not in pairs(sample.expected, calls)
    required = {name: _required(schema) for name, schema in sample.tools.items()}
    due, written = optional_arguments(sample.expected, calls, required)
    values |= {
        "expected": 1, "tool_match": int(same), "argument_match": int(all_right),
        "ordered": int(len(wanted) > 1), "order_match": int(len(wanted) > 1 and names == wanted),
        "optional_due": due, "optional_written": written,
    }  # fmt: skip
    if calls and not same:
        problems.append(f"wrong_tool: {', '.join(names)} instead of {', '.join(wanted)}"[:400])
    elif calls and not all_right:
        wanted_calls = json.dumps([call.to_json() for call in sample.expected], ensure_ascii=False)
        problems.append(f"wrong_arguments: expected {wanted_calls}"[:1000])
    return problems


def _required(schema: Any) -> set[str]:
    names = schema.get("required") if isinstance(schema, dict) else None
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()
