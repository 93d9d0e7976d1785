"""The judge of raw token ids sees what a front end would hide."""

from typing import Any

import pytest

from benchmarks.front_ends.__main__ import front_ends
from benchmarks.front_ends.raw import Judged, judge_raw, raw_calls
from constrained_k2 import Vocabulary
from constrained_k2.evaluation.sample import read_sample
from constrained_k2.formats.kimi_k2 import ARGUMENT_BEGIN, CALL_BEGIN, CALL_END, SECTION_BEGIN, SECTION_END, TURN_END
from tests.kit.tools import tool
from tests.kit.turns import ids_of

FIND: dict[str, Any] = {
    "type": "object",
    "properties": {"q": {"type": "string", "maxLength": 12}},
    "required": ["q"],
    "additionalProperties": False,
}
BODY = {
    "messages": [
        {"role": "user", "content": "find a"},
        {"role": "assistant", "tool_calls": [{"id": "functions.a.find:0"}]},
        {"role": "user", "content": "find b"},
    ],
    "tools": [tool("a.find", FIND)],
}


def call(call_id: str, arguments: str) -> str:
    return f"{CALL_BEGIN}{call_id}{ARGUMENT_BEGIN}{arguments}{CALL_END}"


RIGHT = call("functions.a.find:1", '{"q": "\\"{}é"}')


@pytest.mark.parametrize(
    ("text", "judged"),
    [
        ("No call.", Judged(1)),
        (f"{SECTION_BEGIN}{RIGHT}{SECTION_END}{TURN_END}", Judged(1, calls=1)),
        (RIGHT + call("functions.a.find:2", '{"q":"\\\\"}'), Judged(1, calls=2)),
        (RIGHT + call("functions.a.find:1", '{"q":""}'), Judged(1, calls=2, misnumbered=1)),
        (RIGHT + call("functions.find:2", '{"q":""}'), Judged(1, calls=2, undeclared=1)),
        (call("a.find:1", '{"q":""}'), Judged(1, calls=1, undeclared=1)),
        (call("functions.a.find:1", '{"q":"a","b":1}'), Judged(1, calls=1, invalid=1)),
        (call("functions.a.find:1", '["q"]'), Judged(1, calls=1, invalid=1)),
        (call("functions.a.find:1", '{"q":"a'), Judged(1, in_strings=1)),
        (call("functions.a.find:1", f'{{"q":"}}{CALL_END}{SECTION_END}"}}'), Judged(1, 1, invalid=1, in_strings=2)),
        (call("functions.a.find:1", f'{{"q":"{TURN_END}"}}')[:-1], Judged(1, in_strings=1)),
        (f"{CALL_BEGIN}functions.a{CALL_END}", Judged(1)),
    ],
)
def test_raw_token_ids_are_judged(small_vocabulary: Vocabulary, text: str, judged: Judged) -> None:
    found, problems = judge_raw(read_sample(BODY, 1), ids_of(small_vocabulary, text), small_vocabulary, cut=False)
    assert found == judged
    wrong = judged.undeclared + judged.invalid + judged.misnumbered + bool(judged.in_strings)
    assert len(problems) == wrong


def test_a_call_is_read_with_its_id(small_vocabulary: Vocabulary) -> None:
    (found,) = raw_calls(ids_of(small_vocabulary, RIGHT), small_vocabulary)
    assert found == ("functions.a.find:1", '{"q": "\\"{}é"}', 0, True)


def test_counts_add_up_and_a_cut_is_counted(small_vocabulary: Vocabulary) -> None:
    sample = read_sample(BODY, 1)
    one, _ = judge_raw(sample, ids_of(small_vocabulary, RIGHT[:-1]), small_vocabulary, cut=True)
    assert one + one == Judged(2, cut=2)


def test_each_front_end_is_measured_with_and_without_the_package() -> None:
    assert {(each.name, each.environment.get("VLLM_PLUGINS")) for each in front_ends({"R": "1"})} == {
        (name, plugins) for name in ("Rust", "Python") for plugins in ("none", None)
    }
