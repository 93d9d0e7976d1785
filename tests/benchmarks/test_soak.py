"""The soak: its mix has every kind, and a server's mistake is a problem of one request, not the end of the run."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from benchmarks.soak.load import Expectation, Load, mixed_load
from benchmarks.soak.run import Soak, soak
from constrained_k2.evaluation.sample import Sample
from tests.evaluation.ab_samples import body
from tests.evaluation.fake_endpoint import FakeEndpoint


def load(fake: Any, expect: Expectation, *, stream: bool = False, abort_after: int | None = None) -> Load:
    asked = body(fake=fake, model="kimi-k2", seed=0, tool_choice="required", stream=stream)
    sample = Sample(0, "", asked, stream=stream)
    return Load(0, "kind", "/v1/chat/completions", asked, expect, abort_after, sample)


def soaked(*loads: Load) -> Soak:
    with FakeEndpoint() as endpoint:
        return asyncio.run(soak(endpoint.url, loads, concurrency=2))


def test_the_mix_holds_every_kind() -> None:
    loads = list(mixed_load(24, seed=1))
    assert Counter(one.kind for one in loads) == {
        "constrained": 8, "text": 2, "json_schema": 2, "regex": 2, "structural_tag": 2, "logprobs": 2, "aborted": 2,
        "over budget": 2, "hostile": 2,
    }  # fmt: skip
    assert loads == list(mixed_load(24, seed=1))
    for one in loads:
        json.dumps(one.body)


@pytest.mark.parametrize("stream", [True, False])
def test_right_calls_are_counted(stream: bool) -> None:
    result = soaked(load({} if stream else {"fault": "whole"}, "valid", stream=stream))
    assert (result.finished, result.calls, result.problems) == (1, 1, [])


def test_what_is_only_compared_is_kept() -> None:
    result = soaked(load({"fault": "whole", "content": "hi"}, "same"))
    assert result.texts == {0: json.dumps([["hi", None, "tool_calls", False]])}
    assert result.problems == []


def test_a_choice_of_any_form_is_one_problem_at_most() -> None:
    result = soaked(load({"fault": "odd choices"}, "same"), load({"fault": "odd message"}, "same"))
    assert result.problems == ["#0 kind: HTTP 200: the answer has no choices"]


def test_what_must_not_be_served() -> None:
    assert soaked(load({"fault": "400"}, "refused"), load({"fault": "400"}, "served")).problems == []
    assert soaked(load({"fault": "whole"}, "refused")).problems == ["#0 kind: HTTP 200, not 400"]


def test_a_client_that_goes_away() -> None:
    result = soaked(load({}, "served", stream=True, abort_after=2))
    assert (result.statuses, result.problems) == ({("kind", "aborted"): 1}, [])


@pytest.mark.parametrize(
    ("fake", "stream", "words"),
    [
        ({"calls": [["functions.get_weather:0", "get_weather", '{"city": 3}']]}, True, "is not of type 'string'"),
        ({"fault": "bare 500"}, True, 'HTTP 500: "Internal Server Error'),
        ({"fault": "bare 500"}, False, 'HTTP 500: "Internal Server Error'),
        ({"fault": "html"}, False, "the answer: Expected `object`, got `str`"),
        ({"fault": "wrong types"}, True, "got `int` - at `$.choices[0].delta.content`"),
        ({"fault": "broken"}, True, "HTTP JSONDecodeError"),
        ({"fault": "a number"}, True, "an event: Expected `object`, got `int`"),
        ({"fault": "deep"}, True, "HTTP RecursionError"),
        ({"fault": "no done"}, True, "HTTP stream without [DONE]"),
        ({"fault": "drop"}, True, "HTTP RemoteProtocolError"),
        ({"fault": "error event"}, True, "HTTP error in the stream"),
    ],
)
def test_what_a_server_does_wrong_is_a_problem(fake: Any, stream: bool, words: str) -> None:
    result = soaked(load(fake, "valid", stream=stream), load({}, "valid", stream=True))
    assert len(result.problems) == 1 and words in result.problems[0]
    assert sum(result.statuses.values()) == 2


def test_a_server_that_is_gone() -> None:
    result = asyncio.run(soak("http://127.0.0.1:9", [load({}, "valid")], concurrency=1))
    assert len(result.problems) == 2 and "health is HTTP ConnectError" in result.problems[1]
