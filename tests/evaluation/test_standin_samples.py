"""The stand-in's samples: right by their own schemas, and of values that training never saw."""

import json
import random
from itertools import islice
from typing import Any

import jsonschema
import pytest

from constrained_k2.evaluation.samples import Sample
from constrained_k2.evaluation.scores import Answer
from constrained_k2.evaluation.standin.catalogue import TOOLS
from constrained_k2.evaluation.standin.dialogs import Author, answered_dialogs, arguments_text, held_out_samples
from constrained_k2.evaluation.standin.measure import figures
from constrained_k2.evaluation.standin.values import Draw, is_held_out
from constrained_k2.format import ToolCallFormat
from constrained_k2.rendering import repair_messages
from constrained_k2.tools import ToolCallSpec

SAMPLES = list(held_out_samples(400, seed=3))
SPLIT_KINDS = (
    "account",
    "address",
    "airport",
    "amount",
    "city",
    "code",
    "date",
    "email",
    "name",
    "time",
    "title",
    "word",
)


def schemas(body: Any) -> dict[str, Any]:
    functions = (tool["function"] for tool in body["tools"])
    return {function["name"]: function.get("parameters", {"type": "object"}) for function in functions}


def made_calls(body: Any) -> list[Any]:
    return [call for message in body["messages"] for call in message.get("tool_calls", ())]


def test_same_seed_same_samples() -> None:
    assert list(held_out_samples(30, seed=3)) == SAMPLES[:30]
    assert list(held_out_samples(30, seed=4)) != SAMPLES[:30]


def test_every_category_and_every_tool_comes() -> None:
    assert {sample["category"] for sample in SAMPLES} == {"single", "parallel", "result", "no_tool", "chat"}
    called = {call["name"] for sample in SAMPLES for call in sample["expected"]["calls"]}
    assert all(called & set(tool.names) for tool in TOOLS)
    assert any(made_calls(sample) and sample["expected"]["calls"] for sample in SAMPLES)  # indexes that count up


def test_expected_calls_are_declared_and_valid() -> None:
    for sample in SAMPLES:
        for call in sample["expected"]["calls"]:
            validator = jsonschema.Draft202012Validator(
                schemas(sample)[call["name"]], format_checker=jsonschema.FormatChecker()
            )
            validator.validate(call["arguments"])
            assert json.loads(arguments_text(call["arguments"])) == call["arguments"]


def test_calls_are_expected_where_a_call_is_asked_for() -> None:
    counts = {"single": 1, "parallel": 2, "result": 0, "no_tool": 0, "chat": 0}
    for sample in SAMPLES:
        assert len(sample["expected"]["calls"]) == counts[sample["category"]]


def test_dialogs_are_as_kimi_wants_them() -> None:
    for body in (*SAMPLES[:100], *islice(answered_dialogs(0, held_out=False), 50)):
        assert repair_messages(body)[1] == []
        ToolCallSpec.from_openai(body)
        for index, call in enumerate(made_calls(body)):
            assert call["id"] == ToolCallFormat.call_id(call["function"]["name"], index)
            jsonschema.validate(json.loads(call["function"]["arguments"]), schemas(body)[call["function"]["name"]])


@pytest.mark.parametrize("kind", SPLIT_KINDS)
def test_values_are_for_training_or_held_out(kind: str) -> None:
    for held_out in (False, True):
        draw = Draw(random.Random(0), held_out=held_out)
        texts = [draw.kind(kind).text for _ in range(50)]
        parts = [part for text in texts for part in (text.split(", ") if kind == "address" else (text,))]
        assert {is_held_out(part) for part in parts} == {held_out}


def test_amounts_are_numbers_as_spelled() -> None:
    draw = Draw(random.Random(0), held_out=False)
    assert all(json.dumps(value.argument) == value.text for value in (draw.kind("amount") for _ in range(200)))


def test_pairs_and_sets_of_options_are_held_out() -> None:
    names = {name: tool.names[0] for tool in TOOLS for name in tool.names}
    pairs: dict[bool, set[str]] = {}
    for held_out in (False, True):
        author = Author(5, held_out=held_out)
        wanted = [author.ask(author.open()) for _ in range(400)]
        pairs[held_out] = {"+".join(names[name] for name, _ in w.calls) for w in wanted if len(w.calls) > 1}
    assert pairs[False] and pairs[True]
    assert not pairs[False] & pairs[True]


def sample_of(line: Any) -> Sample:
    return Sample(0, "auto", {"messages": line["messages"], "tools": line["tools"]}, False, 0)


def test_figures_of_known_answers() -> None:
    line = {
        "messages": [{"role": "user", "content": "Weather in Oslo, 3 days, in celsius."}],
        "tools": [TOOLS[0].declaration(0)],
        "expected": {"calls": [{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3, "unit": "celsius"}}]},
    }
    silent = {**line, "expected": {"calls": []}}

    def answer(arguments: str, name: str = "get_weather") -> Answer:
        return Answer("tool_calls", calls=((f"functions.{name}:0", name, arguments),))

    pairs = [
        (line, answer('{"city":"Oslo","days":3,"unit":"celsius"}')),
        (line, answer('{"city":"Oslo","days":"3"}')),
        (line, answer('{"city":"Oslo","days":3', "get_weather")),
        (line, Answer("stop", "I can't.")),
        (silent, answer('{"city":"Oslo","days":3}')),
        (silent, Answer("stop", "Hello!")),
    ]
    found = figures(pairs, [sample_of(line) for line, _ in pairs])
    assert found == {
        "requests": 6,
        "finished": 6,
        "calls": 4,
        "schema_accuracy": 2 / 4,
        "tool_call_f1": 2 * 3 / (4 + 4),
        "calls_matched": 1 / 4,
        "arguments_matched": (3 + 1) / 12,
        "optional_recall": 1 / 4,
    }
