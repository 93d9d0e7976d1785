"""Faults are looked for in hostile prompts and requests too."""

import time
from typing import Any

import pytest

from constrained_k2 import InvalidRequest, find_faults
from constrained_k2.formats.kimi_k2 import (
    ARGUMENT_BEGIN,
    ASSISTANT,
    CALL_BEGIN,
    GENERATION_PROMPT,
    MIDDLE,
    SYSTEM,
    TURN_END,
)

PROMPT = f"{ASSISTANT}assistant{MIDDLE}%s{TURN_END}{GENERATION_PROMPT}"


@pytest.mark.parametrize(
    ("body", "location"), [(5, "body"), ([], "body"), ({"messages": 5}, "messages"), ({"messages": "user"}, "messages")]
)
def test_requests_without_messages(body: Any, location: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{location}: must be"):
        find_faults(GENERATION_PROMPT, body)


@pytest.mark.parametrize("role", [[], {}, None, 5])
def test_a_role_that_is_not_a_string(role: Any) -> None:
    assert not find_faults(GENERATION_PROMPT, {"messages": [{"role": role, "content": role}]})


def test_results_of_other_spellings_and_second_results() -> None:
    call_id = "functions.grep:0"
    called = f"{ASSISTANT}assistant{MIDDLE}{CALL_BEGIN}{call_id}{ARGUMENT_BEGIN}{{}}{TURN_END}"

    def problems(*ids: str) -> list[tuple[str, str]]:
        results = (f"{SYSTEM}grep{MIDDLE}## Return of {each}\nr{TURN_END}" for each in ids)
        found = find_faults(called + "".join(results) + GENERATION_PROMPT)
        return [(fault.kind, fault.problem) for fault in found]

    assert not problems(call_id)
    assert problems("functions_grep_0") == [
        ("result id", "no earlier call has the id 'functions_grep_0', but one has 'functions.grep:0'")
    ]
    assert problems("functions.grep:1") == [("result id", "no earlier call has the id 'functions.grep:1'")]
    assert problems(call_id, call_id) == [("result id", "the call 'functions.grep:0' has a result already")]


def test_calls_without_arguments_take_linear_time() -> None:
    """Quadratic time would be 200 s."""
    start = time.process_time()
    assert not find_faults(PROMPT % (CALL_BEGIN * 25_000))
    assert time.process_time() - start < 5
