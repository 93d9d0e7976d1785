"""The comparison of several ranks with one; no server is started."""

from typing import Any

import pytest

from benchmarks.ranks.__main__ import is_good, printed
from benchmarks.ranks.run import STOCK, Answers, compared, greedy_samples, judged
from benchmarks.ranks.topologies import ONE_RANK

TP = "tensor parallel 2"


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


def test_answers_are_compared_with_one_rank_of_the_same_arm() -> None:
    rows = compared({
        (ONE_RANK, STOCK): answers((1,), (2,), (3,)),
        (TP, STOCK): answers((1,), (2,), (4,)),
        (ONE_RANK, "structured_output"): answers((5,), (6,), ()),
        (TP, "structured_output"): answers((5,), (7,), ()),
    })  # fmt: skip
    assert [row.same for row in rows] == [{0, 1, 2}, {0, 1}, {0, 1}, {0}]  # a failed request is the same as nothing
    assert not is_good(rows)
    assert "| tensor parallel 2 | structured_output | 1 of 3 | 1 of 2 | 1 | 0 | 0 |" in printed(rows)


@pytest.mark.parametrize(("problems", "good"), [((), True), (("#0: undeclared",), False)])
def test_an_invalid_call_is_never_good(problems: tuple[str, ...], good: bool) -> None:
    rows = compared({
        (ONE_RANK, STOCK): answers((1,)),
        (TP, STOCK): answers((1,)),
        (ONE_RANK, "structured_output"): answers((2,)),
        (TP, "structured_output"): answers((2,), problems=problems),
    })  # fmt: skip
    assert is_good(rows) == good
