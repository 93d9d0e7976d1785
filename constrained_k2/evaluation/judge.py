"""Judges one answer: a pure function of the sample and the record."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jsonschema
import numpy as np
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

from constrained_k2.evaluation.answer import FAILURES, SUCCESS, Record
from constrained_k2.evaluation.sample import ExpectedCall, Sample
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.parsing.arguments import refuse_constant
from constrained_k2.schema.dialects import in_json_schema

Arguments = Mapping[str, Any] | None  # decoded arguments; None if they are not a JSON object
_IGNORED = re.compile(r"[ ,./\-_*^]")  # the Berkeley leaderboard ignores these in strings
KINDS: Mapping[str, str] = {
    **FAILURES,
    "truncated": "cut off by max_tokens",
    "undeclared": "a call of an undeclared function",
    "invalid_json": "arguments that are not a JSON object",
    "invalid_arguments": "arguments that the schema does not accept",
    "unjudged": "arguments of a schema that jsonschema cannot use",
    "missing_id": "a call without an id",
    "wrong_id": "an id that is not functions.NAME:INDEX with the expected index, or that another call has",
    "too_many_calls": "more calls than the request allows",
    "missing_call": "no call where one is required",
    "unexpected_call": "a call where none is expected",
    "wrong_tool": "not the expected functions",
    "wrong_arguments": "the expected functions with other arguments",
}  # why an answer is wrong, in the order of precedence
FORM = frozenset({"undeclared", "invalid_json", "invalid_arguments", "missing_id", "wrong_id", "too_many_calls"})
"""The kinds that a constraint rules out."""


class Counts(NamedTuple):
    """Counts of one answer; those of several answers add up."""

    requests: int = 0  # always 1
    success: int = 0  # the answer is complete
    finish_tool_calls: int = 0  # finish_reason is tool_calls; the verifier's count_finish_reason_tool_calls
    successful_tool_call: int = 0  # the verifier's count_successful_tool_call
    tp: int = 0  # tool_calls, as in the reference answer
    fp: int = 0  # tool_calls, unlike the reference
    fn: int = 0  # another finish_reason, unlike the reference
    tn: int = 0  # another finish_reason, as in the reference
    truncated: int = 0  # cut off by max_tokens; all counts below are then 0
    calls: int = 0
    declared: int = 0  # calls of a declared function
    decoded: int = 0  # declared calls whose arguments are a JSON object
    judged: int = 0  # declared calls, without those whose schema jsonschema cannot use
    valid: int = 0  # judged calls whose arguments the schema accepts, formats included
    numbered: int = 0  # calls whose id is as expected
    empty_calls: int = 0  # calls of declared functions with no or empty parameters
    empty_valid: int = 0  # the valid ones of these
    awkward_calls: int = 0  # calls of declared functions with a hyphen or a dot in their name
    awkward_right: int = 0  # the valid and numbered ones of these
    due: int = 0  # a call is required (required, or a named function)
    served: int = 0  # required calls came, right in form
    in_form: int = 0  # the answer is right in form
    expected: int = 0  # the calls of a right answer are known
    tool_match: int = 0  # the expected functions were called
    argument_match: int = 0  # the expected functions were called with right arguments
    ordered: int = 0  # two or more calls are expected
    order_match: int = 0  # two or more functions were called in the expected order
    executable: int = 0  # valid calls, which an agent runs, where the calls of a right answer are known
    unasked: int = 0  # those of these whose function a right answer does not call
    declined_calls: int = 0  # a call was declined, where the calls of a right answer are known
    declined_due: int = 0  # of these, no call of a right answer is missing
    optional_due: int = 0  # optional arguments of the right answer
    optional_written: int = 0  # those of these that were written
    right: int = 0  # nothing is wrong


COLUMNS = Counts._fields


class Judgement(NamedTuple):
    """The verdict on one answer."""

    counts: Counts
    kind: str = ""  # the first of KINDS that applies; empty for a right answer
    problems: tuple[str, ...] = ()  # all of them, each as "kind: details"


def judge(sample: Sample, record: Record, wire_format: WireFormat = KIMI_K2) -> Judgement:
    """Judge an answer, or its failure; neither a model's text nor a tool's schema makes it raise.

    ``wire_format`` is the model's, which tells which ids are expected.
    """
    if record.status != SUCCESS:
        return Judgement(Counts(requests=1), record.failure, (f"{record.failure}: {record.error}",))
    values = Counter({"requests": 1, "success": 1} | _verifier_counts(sample, record))
    if record.is_cut:
        problem = f"truncated: cut off by max_tokens after {record.completion_tokens or 'an unknown number of'} tokens"
        return Judgement(Counts(**values, truncated=1), "truncated", (problem,))
    problems: list[str] = []
    calls: list[tuple[str, Arguments]] = []
    tools = sample.tools
    ids: set[str] = set()
    for index, (call_id, name, text) in enumerate(record.calls, sample.first_index):
        found, arguments, wrong = _judge_call(tools, name, text)
        id_problem = _judge_id(call_id, name, index, wire_format, ids)
        ids.add(call_id)
        is_numbered = not id_problem
        values.update(found)
        values["numbered"] += is_numbered
        if name in tools and ("-" in name or "." in name):
            values.update(awkward_calls=1, awkward_right=int(is_numbered and bool(found.get("valid"))))
        problems += [*wrong, id_problem] if id_problem else wrong
        calls.append((name, arguments))
        if sample.expected is not None and found.get("valid"):
            is_asked_for = any(name == right.name for right in sample.expected)
            values.update(executable=1, unasked=int(not is_asked_for))
    if sample.max_calls is not None and len(calls) > sample.max_calls:
        problems.append(f"too_many_calls: {len(calls)} of at most {sample.max_calls}")
    if record.declined and sample.expected is not None:
        left = Counter(right.name for right in sample.expected) - Counter(name for name, _ in calls)
        values.update(declined_calls=1, declined_due=int(not left))
    values["in_form"] = int(not problems)
    if sample.choice in {"required", "named"}:
        values.update(due=1, served=int(bool(calls) and not problems))
    problems += _compare_with_expected(sample, calls, values)
    values["right"] = int(not problems)
    kind = min((problem.partition(":")[0] for problem in problems), key=[*KINDS].index, default="")
    return Judgement(Counts(**values), kind, tuple(problems))


def is_successful_tool_call(calls: tuple[tuple[str, str, str], ...], tools: Mapping[str, Any]) -> bool:
    """True if K2 Vendor Verifier counts an answer that ended with ``tool_calls`` as ``count_successful_tool_call``.

    Source: its ``tool_calls_eval.py`` (``validate_tool_call``) of November 2025, with its peculiarities: a tool with no
    or empty ``parameters`` never succeeds, formats are not checked, ``NaN`` is a number.
    """

    def is_valid(arguments: str, schema: Any) -> bool:
        try:
            value = json.loads(arguments)
            validator = jsonschema.validators.validator_for(schema)
            validator.check_schema(schema)
            # The registry fetches nothing: a reference that leaves the schema is an error here.
            return bool(validator(schema, registry=REGISTRY).is_valid(value))
        except Exception:  # noqa: BLE001 - the verifier counts every error as a failure, a wrong schema's too
            return False

    schemas = [(arguments, tools.get(name)) for _, name, arguments in calls]
    return bool(calls) and all(schema and is_valid(arguments, schema) for arguments, schema in schemas)


def _verifier_counts(sample: Sample, record: Record) -> dict[str, int]:
    calls = record.finish_reason == "tool_calls" or (record.finish_reason == "length" and not record.is_cut)
    values = {"finish_tool_calls": int(calls)}
    if calls:
        values["successful_tool_call"] = int(is_successful_tool_call(record.calls, sample.tools))
    # OpenAI's API and vLLM end an answer with a named function with "stop", so its reason says nothing.
    if sample.should_call is not None and (sample.official is not None or sample.choice != "named"):
        values[("tp" if calls else "fn") if sample.should_call else ("fp" if calls else "tn")] = 1
    return values


def _judge_call(tools: Mapping[str, Any], name: str, text: str) -> tuple[dict[str, int], Arguments, list[str]]:
    arguments, problem = decode_arguments(text)
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


def _judge_id(call_id: str, name: str, index: int, wire_format: WireFormat, earlier: set[str]) -> str:
    """The problem with a call's id; empty if it is as expected. ``earlier`` are the ids of the calls before it."""
    if not call_id:
        return f"missing_id: the call of {name!r} has none"
    if not wire_format.writes_ids:  # the server made it up
        return f"wrong_id: {call_id!r} is also an earlier call's" if call_id in earlier else ""
    expected = None if wire_format.name_problem(name) else wire_format.call_id(name, index)
    return "" if call_id == expected else f"wrong_id: {call_id!r}, not {expected!r}"


def decode_arguments(text: str) -> tuple[Arguments, str]:
    """Decode a call's arguments; if they are not a JSON object, None and why."""
    try:
        value = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        return None, str(error)
    return (value, "") if isinstance(value, dict) else (None, f"{type(value).__name__}, not an object")


def _invalid(arguments: Mapping[str, Any], schema: Any) -> str:
    error = next(validator_of(schema).iter_errors(arguments), None)
    return "" if error is None else f"{error.json_path}: {error.message}"[:400]


def validator_of(schema: Any) -> Any:
    """The validator of a schema's draft, with formats; references to other documents are not fetched.

    What coverage reports as "read as" is read in the same way.
    """
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    schema, _ = in_json_schema(schema)
    return validator(schema, registry=REGISTRY, format_checker=validator.FORMAT_CHECKER)


def _compare_with_expected(sample: Sample, calls: list[tuple[str, Arguments]], values: Counter[str]) -> list[str]:
    problems = []
    if sample.should_call and not calls:
        problems.append("missing_call: none came")
    elif sample.should_call is False and calls:
        problems.append(f"unexpected_call: {', '.join(name for name, _ in calls)}"[:400])
    if not sample.expected:
        return problems
    names, wanted = [name for name, _ in calls], [call.name for call in sample.expected]
    same = sorted(names) == sorted(wanted)
    all_right = same and is_matched(sample.expected, calls)
    required = {name: _required(schema) for name, schema in sample.tools.items()}
    due, written = optional_arguments(sample.expected, calls, required)
    values.update(expected=1, tool_match=same, argument_match=all_right, optional_due=due, optional_written=written)
    if len(wanted) > 1:
        values.update(ordered=1, order_match=names == wanted)
    if calls and not same:
        problems.append(f"wrong_tool: {', '.join(names)} instead of {', '.join(wanted)}"[:400])
    elif calls and not all_right:
        wanted_calls = json.dumps([call.to_json() for call in sample.expected], ensure_ascii=False)
        problems.append(f"wrong_arguments: expected {wanted_calls}"[:1000])
    return problems


def _required(schema: Any) -> set[str]:
    names = schema.get("required") if isinstance(schema, dict) else None
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _matches(expected: ExpectedCall, name: str, arguments: Arguments) -> bool:
    """True if a call has the expected name, no missing or surplus argument, and only right values."""
    if name != expected.name or arguments is None or not arguments.keys() <= expected.arguments.keys():
        return False
    accepted = (is_accepted(arguments[key], expected.arguments[key], lenient=expected.lenient) for key in arguments)
    return expected.arguments.keys() - arguments.keys() <= expected.omissible and all(accepted)


def is_accepted(value: Any, accepted: Sequence[Any], *, lenient: bool) -> bool:
    """True if a value equals one of the ``accepted`` ones; ``lenient`` as in :class:`ExpectedCall`."""
    return any(_equals(value, right, lenient=lenient) for right in accepted)


def is_matched(expected: Sequence[ExpectedCall], calls: Sequence[tuple[str, Arguments]]) -> bool:
    """True if each expected call has a matching ``(name, arguments)`` of its own; there are as many of both."""
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    fits = np.array([[_matches(right, *call) for call in calls] for right in expected])
    return bool(fits[linear_sum_assignment(fits, maximize=True)].all())


def optional_arguments(
    expected: Sequence[ExpectedCall], calls: Sequence[tuple[str, Arguments]], required: Mapping[str, set[str]]
) -> tuple[int, int]:
    """Count the optional arguments of the right answer, and those that were written.

    Optional are arguments that neither the schema requires (``required``: name -> its arguments) nor the right answer
    allows to omit. Each expected call is compared with the next call of its name.
    """
    wanted_count = written = 0
    left = list(calls)
    for right in expected:
        wanted = right.arguments.keys() - right.omissible - required.get(right.name, set())
        wanted_count += len(wanted)
        number = next((number for number, (name, _) in enumerate(left) if name == right.name), None)
        if number is not None:
            written += len(wanted & (left.pop(number)[1] or {}).keys())
    return wanted_count, written


def _equals(value: Any, right: Any, *, lenient: bool) -> bool:
    if isinstance(value, bool) or isinstance(right, bool):  # True == 1 in Python
        return value is right
    if isinstance(value, str) and isinstance(right, str):
        return _plain(value) == _plain(right) if lenient else value == right
    if isinstance(value, list) and isinstance(right, list):
        return len(value) == len(right) and all(map(partial(_equals, lenient=lenient), value, right))
    if isinstance(value, dict) and isinstance(right, dict):
        if lenient and all(isinstance(values, list) for values in right.values()):
            return value.keys() <= right.keys() and all(
                is_accepted(value[key], right[key], lenient=True) if key in value else "" in right[key] for key in right
            )
        return value.keys() == right.keys() and all(_equals(value[key], right[key], lenient=lenient) for key in value)
    return {type(value), type(right)} <= {int, float, type(None)} and value == right


def _plain(text: str) -> str:
    return _IGNORED.sub("", text).lower().replace("'", '"')
