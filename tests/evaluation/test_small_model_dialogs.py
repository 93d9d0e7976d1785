"""The small model's samples: right by their own schemas, and of values that training never saw."""

import json
import random
import re
from itertools import islice
from typing import Any

import jsonschema
import pytest

from constrained_k2.evaluation.sample import bundled_bodies
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.prompts import repair_messages
from constrained_k2.request.spec import ToolCallSpec
from scripts.small_model.catalogue import TOOLS, Declared
from scripts.small_model.dialogs import Author, Faults, answered_dialogs, arguments_text, drawn_samples
from scripts.small_model.shipped import HELD_OUT
from scripts.small_model.values import Draw, is_held_out

SAMPLES = list(drawn_samples(400, seed=3))
SPLIT_KINDS = ("address", "airport", "amount", "city", "code", "date", "email", "name", "time", "title", "word")


def schemas(body: Any) -> dict[str, Any]:
    functions = (tool["function"] for tool in body["tools"])
    return {function["name"]: function.get("parameters", {"type": "object"}) for function in functions}


def made_calls(body: Any) -> list[Any]:
    return [call for message in body["messages"] for call in message.get("tool_calls", ())]


def is_valid(arguments: Any, schema: Any) -> bool:
    """True if a call's arguments obey the schema, formats included."""
    return jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).is_valid(arguments)


def test_every_category_and_every_tool_comes_with_the_right_number_of_calls() -> None:
    counts = {"single": 1, "parallel": 2, "result": 0, "no_tool": 0, "chat": 0}
    assert {sample["category"] for sample in SAMPLES} == counts.keys()
    called = {call["name"] for sample in SAMPLES for call in sample["expected"]["calls"]}
    assert all(called & set(tool.names) for tool in TOOLS)
    assert any(made_calls(sample) and sample["expected"]["calls"] for sample in SAMPLES)  # indexes that count up
    for sample in SAMPLES:
        assert len(sample["expected"]["calls"]) == counts[sample["category"]]
        for call in sample["expected"]["calls"]:
            assert is_valid(call["arguments"], schemas(sample)[call["name"]])
            assert json.loads(arguments_text(call["arguments"])) == call["arguments"]


def test_dialogs_are_as_kimi_wants_them() -> None:
    for body in (*SAMPLES[:100], *islice(answered_dialogs(0, held_out=False), 50)):
        assert repair_messages(body)[1] == []
        ToolCallSpec.from_openai(body)
        for index, call in enumerate(made_calls(body)):
            assert call["id"] == KIMI_K2.call_id(call["function"]["name"], index)
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


def test_requests_read_as_sentences() -> None:
    for sample in SAMPLES:
        last = sample["messages"][-1]
        if last["role"] == "user":
            assert last["content"][-1] in ".?!" and last["content"][0].isupper(), last["content"]
            assert not re.search(r" a [aeiouAEIOU]| 1 (days|nights|people)|[.?!],|[.?!]{2}", last["content"])


@pytest.mark.parametrize(
    ("faults", "wrong"),
    [
        (Faults(), ("get_weather", {"city": "Oslo", "days": 3, "unit": "celsius"})),
        (Faults(number=1.0), ("get_weather", {"city": "Oslo", "days": "3", "unit": "celsius"})),
        (Faults(enum=1.0), ("get_weather", {"city": "Oslo", "days": 3, "unit": "CELSIUS"})),
        (Faults(name=1.0), ("get-weather", {"city": "Oslo", "days": 3, "unit": "celsius"})),
        (Faults(missing=1.0), ("get_weather", {"city": "Oslo", "unit": "celsius"})),
    ],
)
def test_faults_are_those_of_real_models(faults: Faults, wrong: Any) -> None:
    arguments = {"city": "Oslo", "days": 3, "unit": "celsius"}
    assert faults.of(Declared(TOOLS[0], 0), arguments, random.Random(0)) == wrong
    assert arguments == {"city": "Oslo", "days": 3, "unit": "celsius"}


def test_only_what_is_learnt_from_holds_faults() -> None:
    faulty = answered_dialogs(0, held_out=False, faults=Faults(number=0.3, enum=0.3, name=0.1, missing=0.1))
    wrong = right = 0
    for body in islice(faulty, 50):
        for call in made_calls(body):
            valid = is_valid(
                json.loads(call["function"]["arguments"]), schemas(body).get(call["function"]["name"], False)
            )
            right, wrong = right + valid, wrong + (not valid)
    assert wrong and right


def test_what_ships_is_what_is_drawn() -> None:
    assert list(bundled_bodies(HELD_OUT, 40)) == list(drawn_samples(40))
    again, once_more = (list(bundled_bodies(HELD_OUT, 40, seed=1)) for _ in range(2))
    assert again == once_more != list(bundled_bodies(HELD_OUT, 40))
    with pytest.raises(ValueError, match="Ask for fewer"):
        list(bundled_bodies(HELD_OUT, 10**6))
