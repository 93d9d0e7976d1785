"""Samples of an evaluation: files in each form, malformed lines, and the sets that ship."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from constrained_k2 import ToolCallSpec
from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation.ab.directory import Sampling, begin
from constrained_k2.evaluation.ab.loaders import BadLine, read_samples
from constrained_k2.evaluation.sample import BUNDLED, ExpectedCall, Sample, bundled_bodies, read_sample
from scripts.bundled_samples.__main__ import drawn_bodies
from scripts.bundled_samples.adversarial import MAKERS
from scripts.bundled_samples.ordinary import ordinary_samples
from tests.evaluation.fake_endpoint import body, write_lines


def good(samples: Any) -> list[Sample]:
    found = list(samples)
    assert [sample for sample in found if isinstance(sample, BadLine)] == []
    return found


def test_a_sample_of_the_vendor_verifier(tmp_path: Path) -> None:
    messages = [{"role": "_input", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    line = body(messages=messages, temperature=0.6, stream=True, model="kimi", max_tokens=100)
    right = {"data_index": 1, "status": "success", "finish_reason": "tool_calls"}
    official = [right, {"data_index": 2, "status": "failed"}]
    path = write_lines(tmp_path / "samples.jsonl", [line, line])
    first, second = good(read_samples(path, official=write_lines(tmp_path / "results.jsonl", official)))
    assert first.body == {"messages": [messages[0] | {"role": "system"}, messages[1]], "tools": line["tools"],
                          "temperature": 0.6, "max_tokens": 100}  # fmt: skip
    assert (first.number, second.number) == (1, 2)
    assert (first.should_call, second.should_call) == (True, None)


def test_the_same_request_twice_is_two_samples(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "samples.jsonl", [body(), body(), body("else"), body()])
    first, again = (begin(tmp_path / "run", "test", read_samples(path), Sampling()) for _ in range(2))
    keys = [sample.key for sample in first.read_samples()]
    assert len(set(keys)) == 4
    assert keys == [sample.key for sample in again.read_samples()]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "expected an object, got an array"),
        ("{}", "missing required field `messages`"),
        ({"messages": []}, "messages: the list is empty"),
        ({"messages": ["hi"]}, r"messages\[0\]"),
        (body(tools={}), r"Expected `array \| null`, got `object` - at `\$.tools`"),
        (body(tools=[{"function": {}}]), r"tools\[0\]"),
        (body(tool_choice=7), "tool_choice"),
        (body(expected=[]), "expected"),
        (body(expected={"calls": [{"name": "f", "arguments": "{"}]}), r"expected.calls\[0\].arguments: not JSON"),
        (body(expected={"calls": [{"name": "f", "accepted": {"a": 1}}]}), "Expected `array`"),
        ({"question": "x", "function": []}, "question"),
        ({"question": [[{"role": "user"}]], "function": 3}, "function"),
    ],
)
def test_a_malformed_line_costs_itself_only(line: Any, words: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "samples.jsonl", [body(), line, "", body("more")])
    first, bad, last = read_samples(path)
    assert isinstance(first, Sample) and isinstance(last, Sample) and last.number == 4
    assert isinstance(bad, BadLine) and bad.line == 2
    assert re.search(words, str(bad))


@pytest.mark.parametrize("depth", range(100, 1000, 100))
def test_a_deep_line_costs_itself_only(depth: int, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    case = '{"id": 1, "question": [[]], "function": [' + '{"not":' * depth + "{}" + "}" * depth + "]}"
    path.write_text(case + "\n" + json.dumps(body()) + "\n")
    assert isinstance(list(read_samples(path))[1], Sample)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(b"\xff\xfe\n" + json.dumps(body()).encode() + b"\n\xef\xbb\xbf{}\n")
    found = list(read_samples(path))
    assert [type(sample) for sample in found] == [BadLine, Sample, BadLine]
    with pytest.raises(InvalidRequest, match="cannot be read"):
        list(read_samples(tmp_path / "none.jsonl"))


def test_bfcl_files_as_published(tmp_path: Path) -> None:
    kinds = {"type": "tuple", "items": {"type": "any"}, "optional": True}
    properties = {"side": {"type": "float"}, "type": kinds, "unit": {"type": "string"}}
    parameters = {"type": "dict", "properties": properties, "required": ["side"]}
    function = {"name": "geo.area", "description": "Area.", "parameters": parameters}
    line = {"id": "multiple_0", "question": [[{"role": "user", "content": "Area?"}]], "function": [function]}
    truth = {"id": "multiple_0", "ground_truth": [{"geo.area": {"side": [2.0], "unit": ["cm", ""]}}]}
    (tmp_path / "possible_answer").mkdir()
    write_lines(tmp_path / "possible_answer" / "BFCL_v4_multiple.json", [truth])
    (sample,) = good(read_samples(write_lines(tmp_path / "BFCL_v4_multiple.json", [line])))
    assert sample.category == "multiple"
    array = {"type": "array", "items": {"type": "string"}}
    read = {"side": {"type": "number"}, "type": array, "unit": {"type": "string"}}
    assert sample.tools == {"geo.area": {"type": "object", "properties": read, "required": ["side"]}}
    accepted = {"side": (2.0,), "unit": ("cm", "")}
    assert sample.expected == (ExpectedCall("geo.area", accepted, frozenset({"unit"}), lenient=True),)
    assert Sample.from_json(json.loads(json.dumps(sample.to_json()))) == sample
    (irrelevant,) = good(read_samples(write_lines(tmp_path / "BFCL_v4_irrelevance.json", [line])))
    assert irrelevant.expected == () and irrelevant.should_call is False


def test_expected_calls_survive_a_file() -> None:
    exact = read_sample(body(expected={"calls": [{"name": "get_weather", "arguments": '{"city": "Oslo"}'}]}), 1)
    assert exact.expected == (ExpectedCall("get_weather", {"city": ("Oslo",)}),)
    assert Sample.from_json(json.loads(json.dumps(exact.to_json()))) == exact


def test_the_built_in_set_is_sound_and_covers_what_it_claims() -> None:
    bodies = list(bundled_bodies(BUNDLED, 99))
    assert bodies == list(drawn_bodies(99))
    samples = [read_sample(body, number) for number, body in enumerate(bodies, 1)]
    assert {sample.category for sample in samples} >= MAKERS.keys()
    for sample in samples:
        ToolCallSpec.from_openai(sample.body)
    assert list(bundled_bodies(BUNDLED, 9, seed=1)) == list(bundled_bodies(BUNDLED, 9, seed=1)) != bodies[:9]
    with pytest.raises(InvalidRequest, match="Ask for fewer"):
        list(bundled_bodies(BUNDLED, 10**6))
    assert {sample.choice for sample in samples} == {"auto", "required", "named", "none"}
    small = [sample for sample in samples if sample.category == "max_tokens too small"]
    assert all(sample.body["max_tokens"] < 10 for sample in small)


def test_the_ordinary_samples_cover_what_they_claim() -> None:
    samples = list(ordinary_samples(100))
    assert {(sample.choice, sample.stream) for sample in samples} == {
        (choice, stream) for choice in ("required", "named", "auto", "none") for stream in (False, True)
    }
    assert {sample.first_index for sample in samples} == {0, 1}
    assert {sample.max_calls for sample in samples} == {None, 0, 1}
    assert [sample.body for sample in ordinary_samples(100)] == [sample.body for sample in samples]
