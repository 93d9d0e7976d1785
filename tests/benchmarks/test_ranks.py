"""The comparison of several ranks with one; no server is started."""

from typing import Any

import pytest

from benchmarks.ranks.__main__ import is_good, printed
from benchmarks.ranks.run import STOCK, Answers, greedy_samples, judged

TP, ROUTE = "tensor parallel 2", "structured_output"


def answer(ids: list[int], *calls: tuple[str, str], finish_reason: str = "tool_calls") -> tuple[int, Any]:
    made = [
        {"id": f"functions.{name}:{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": None, "tool_calls": made}
    return 200, {"choices": [{"index": 0, "message": message, "finish_reason": finish_reason, "token_ids": ids}]}


def answers(*ids: tuple[int, ...], problems: tuple[str, ...] = ()) -> Answers:
    return Answers(ids, 1, 0, problems)


def test_requests_are_of_both_kinds() -> None:
    samples = greedy_samples(4)
    assert [sample.choice for sample in samples] == ["auto", "required", "auto", "required"]
    assert all(sample.tools for sample in samples)


def test_only_what_a_constraint_rules_out_is_a_problem() -> None:
    sample = next(sample for sample in greedy_samples(20) if sample.first_index == 0)
    name = next(iter(sample.tools))
    found = judged(
        [sample] * 4,
        [
            answer([1, 2], ("no_such_tool", "{}")),
            answer([3], finish_reason="stop"),  # not what was expected, but allowed
            answer([4], (name, "{"), finish_reason="length"),
            (500, "the engine is dead"),
        ],
    )
    assert found.ids == ((1, 2), (3,), (4,), ())
    assert (found.calls, found.cut) == (1, 1)
    assert [problem.partition(": ")[2].partition(":")[0] for problem in found.problems] == ["undeclared", "HTTP 500"]


@pytest.mark.parametrize(
    ("several", "problems", "is_as_good"),
    [((5, 7), (), True), ((5, 6), ("#0: undeclared",), False), ((8, 7), (), False)],
    ids=["as often as vLLM alone", "an invalid call", "less often"],
)
def test_an_arm_keeps_the_answers_of_one_rank(
    several: tuple[int, int], problems: tuple[str, ...], is_as_good: bool
) -> None:
    one = {STOCK: answers((1,), (2,), (3,)), ROUTE: answers((5,), (6,), ())}
    two = {STOCK: answers((1,), (9,), (4,)), ROUTE: answers(*((each,) for each in several), (), problems=problems)}
    assert is_good(one, two) == is_as_good
    kept = sum(each == other for each, other in zip((5, 6), several, strict=True))  # a failed request is none
    assert f"| tensor parallel 2 | structured_output | {kept} of 3 | 1 | 0 | {len(problems)} |" in printed(TP, one, two)
