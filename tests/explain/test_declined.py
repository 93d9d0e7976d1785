"""Turns with declined calls, explained; and the calls that thresholds would decline."""

from math import log
from typing import Any

import pytest

from constrained_k2 import ToolCallSpec, Vocabulary
from constrained_k2.evaluation.ab.changes import Change
from constrained_k2.evaluation.ab.thresholds import curve
from constrained_k2.evaluation.answer import ChatAnswer, Record
from constrained_k2.evaluation.sample import read_sample
from constrained_k2.explain.turn import TurnExplainer

BYTES = Vocabulary.of_bytes()
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}


def test_the_wanted_token_of_a_declined_call_is_shown_and_none_behind_it() -> None:
    markers = BYTES.format
    ids = [markers.section_begin, markers.call_begin, *b"functions.", markers.section_end, markers.turn_end]
    likeliest: list[dict[int, float]] = [{token: log(0.99)} for token in ids]
    likeliest[-2] = {ord("z"): log(0.9), ord("f"): log(0.05)}
    likeliest[-1] = {ord("z"): log(0.9)}
    view = TurnExplainer(BYTES).explain(ToolCallSpec.from_openai({"tools": [TOOL]}), ids, likeliest)
    (override,) = view.overrides
    assert (override.phase, override.wanted, override.written) == ("call_id", "z", "<|tool_calls_section_end|>")
    assert view.chances == pytest.approx([0.05])


def change_of(number: int, chances: tuple[float, ...], names: tuple[str, ...], *, declined: bool = False) -> Change:
    calls = tuple((f"functions.{name}:{at}", name, "{}") for at, name in enumerate(names))
    record = Record.of(ChatAnswer("tool_calls", calls=calls, declined=declined), f"{number}")
    return Change("nearest", f"{number}", record, record, (), chances=chances)


def test_the_threshold_with_the_fewest_faults_in_one_half_is_chosen() -> None:
    right = {"calls": [{"name": "find", "arguments": {}}]}
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL], "expected": right}
    samples = {f"{number}": read_sample(body, number) for number in range(6)}
    changes = [
        change_of(0, (0.15,), ("other",)),  # of the first half
        change_of(1, (0.3,), ("other",)),
        change_of(2, (0.6, 0.1), ("find", "other")),
        change_of(3, (0.1,), ("find",)),
        change_of(4, (0.45,), ("find",)),
        change_of(5, (), ()),
    ]
    found = curve(changes, samples)
    assert found is not None and found.chosen == 0.2
    outcomes = {outcome.threshold: outcome[1:] for outcome in found.first}
    assert outcomes[0.0] == (2, 0, 0, 0)
    assert outcomes[0.2] == (0, 2, 2, 0)
    assert outcomes[0.5] == (0, 3, 2, 1)
    outcomes = {outcome.threshold: outcome[1:] for outcome in found.second}
    assert outcomes[0.2] == (1, 1, 0, 1)
    assert curve([change_of(0, (0.1,), (), declined=True)], samples) is None
    assert curve([change_of(0, (), ())], samples) is None
