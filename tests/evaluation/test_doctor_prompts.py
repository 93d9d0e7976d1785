"""The doctor's checks of prompts, and its reader of tags, on prompts that Kimi's own templates and encoder rendered."""

import json
import re
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from constrained_k2.evaluation.doctor.checks import tag_prompts
from constrained_k2.evaluation.doctor.checks.prompts import (
    judge_content,
    judge_declaration,
    judge_generation_prompt,
    judge_results,
)
from constrained_k2.evaluation.doctor.checks.written import _written_in_tags
from constrained_k2.evaluation.doctor.prompt import Piece, ids_in, opens_reasoning, stray, undue_keys
from constrained_k2.formats.kimi_k3 import CLOSE, OPEN, SEPARATOR, SPECIAL_TOKENS
from tests.evaluation.fake_server import SPECIAL_TEXTS
from tests.kit.data import kimi_k3_prompts
from tests.kit.data import rendered as rows
from tests.prompts.kimi_k3 import COPIED, body_of

RIGHT = ("k2_thinking", "k2_instruct_after_fix_reconstructed", "k2_5_json_instant", "k2_5_json_thinking")
TAGS = (*SPECIAL_TOKENS.values(),)


def pieces(
    text: str, specials: Collection[str] = SPECIAL_TEXTS, plain: Sequence[list[int]] | None = None
) -> list[Piece]:
    """A text, split at its special tokens; those in ``plain`` places are ordinary text."""
    found: list[Piece] = []
    for part in re.split("(" + "|".join(map(re.escape, specials)) + ")", text):
        start = sum(len(piece.text) for piece in found)
        special = part in specials and [start, start + len(part)] not in (plain or [])
        if found and not special and not found[-1].special:
            found[-1] = Piece(found[-1].text + part)
        elif part:
            found.append(Piece(part, special))
    return found


def is_faulty(row: dict[str, Any]) -> bool:
    prompt = pieces(row["text"])
    findings = [judge_generation_prompt(prompt), judge_results(prompt)]
    if any(message.get("content") == "" for message in row["request"]["messages"]) or "list" in row["case"]:
        findings.append(judge_content(prompt, row["case"]))
    if row["request"].get("tools"):
        findings.append(judge_declaration(prompt))
    return any(finding.verdict == "fault" for finding in findings)


@pytest.mark.parametrize("name", RIGHT)
def test_no_fault_in_the_templates_that_are_right(name: str) -> None:
    for row in rows(name):
        prompt = pieces(row["text"])
        assert judge_results(prompt).verdict == "ok"
        if row["request"].get("tools"):
            assert judge_declaration(prompt).verdict == "ok", row["case"]
        has_end = row["add_generation_prompt"]
        assert judge_generation_prompt(prompt).verdict == ("ok" if has_end else "fault"), row["case"]
        assert is_faulty(row) is not has_end, row["case"]
        assert not has_end or opens_reasoning(prompt) is (name == "k2_5_json_thinking")


def test_the_faults_of_the_old_template() -> None:
    right = {(row["case"], row["add_generation_prompt"]): row["text"] for row in rows(RIGHT[1])}
    found = 0
    for row in rows("k2_instruct_0905_before_fix"):
        if is_faulty(row):
            found += 1
        else:  # then it is what the repaired template writes
            assert row["text"] == right[row["case"], row["add_generation_prompt"]]
    assert found == 20


@pytest.mark.parametrize("name", RIGHT)
def test_ids_of_the_history(name: str) -> None:
    for row in rows(name):
        calls, results = ids_in(pieces(row["text"]))
        sent = [call["id"] for message in row["request"]["messages"] for call in message.get("tool_calls") or ()]
        assert calls == sent
        assert len(results) == sum(message["role"] == "tool" for message in row["request"]["messages"])
        if row["case"] == "bad_ids":
            assert calls[0] == results[0] == "call_abc123"


def test_declared_keys() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"strict": {}}}}
    assert undue_keys(json.dumps([tool])) == []
    assert undue_keys(json.dumps([tool | {"cache": 1}, tool])) == ["cache"]
    assert undue_keys(json.dumps([{"type": "function", "function": {"name": "f", "strict": None}}])) == ["strict"]
    assert undue_keys("// a tool\ntype f = (_: { strict?: boolean }) => any;") == ["strict"]
    assert undue_keys("[" * 100_000) == []
    assert undue_keys('[1, {"function": 2}]') == []


def test_prompts_of_nothing() -> None:
    assert judge_generation_prompt([]).verdict == "fault"
    assert judge_declaration([]).verdict == "fault"
    assert ids_in([Piece("<|tool_call_begin|>", special=True), Piece("a")]) == ([], [])
    assert tag_prompts.judge_history([], [], "", "").verdict == "ok"
    assert tag_prompts.judge_generation_prompt([], "").verdict == "fault"


def is_right(golden: dict[str, Any]) -> bool:
    """True if no check finds a fault in a prompt, but for one without a generation prompt."""
    prompt, due = pieces(golden["text"], TAGS, golden.get("plain_spans")), tag_prompts.expected(body_of(golden))
    has_end = golden["request"]["options"].get("add_generation_prompt") is not False
    assert tag_prompts.judge_generation_prompt(prompt, "").verdict == ("ok" if has_end else "fault")
    return tag_prompts.judge_history(prompt, due, "", "").verdict == "ok"


def test_no_fault_in_the_encoders_prompts() -> None:
    for golden in [*COPIED, *kimi_k3_prompts()]:
        if golden["name"] != "sglang_unresolvable_tool_run_is_left_alone":  # its result names no call
            assert is_right(golden), golden["name"]


def test_a_changed_text_is_found() -> None:
    changes = (
        ("assistant_with_reasoning_and_tool_calls", 'index="1"', 'index="3"'),
        ("assistant_with_reasoning_and_tool_calls", 'type="boolean"', 'type="string"'),
        ("assistant_raw_json_block", "not json at all", "{}"),
        ("sglang_tool_results_out_of_order_are_resorted", f"{SEPARATOR}r1", f"{SEPARATOR}r2"),
    )
    goldens = {golden["name"]: golden for golden in kimi_k3_prompts()}
    for name, was, becomes in changes:
        golden = goldens[name]
        assert was in golden["text"]
        assert not is_right(golden | {"text": golden["text"].replace(was, becomes)}), name


def test_reading_the_opening_of_reasoning() -> None:
    text = f'{OPEN}message role="assistant"{SEPARATOR}{OPEN}think{SEPARATOR}'
    assert opens_reasoning(pieces(text, TAGS)) and not opens_reasoning(pieces(f"{text}a", TAGS))


def test_stray_markers() -> None:
    call = f'{OPEN}call tool="a" index="1"{SEPARATOR}{OPEN}json type="object"{SEPARATOR}raw'
    assert stray(pieces(call, TAGS)) == 0
    assert stray(pieces(f"{OPEN}{OPEN}{CLOSE}a{SEPARATOR}b{SEPARATOR}cd{OPEN}e", TAGS)) == 3


def test_calls_as_sampled() -> None:
    turn = (
        f"{CLOSE}response{SEPARATOR}{OPEN}tools{SEPARATOR}"
        f'{OPEN}call tool="a&amp;b" index="2"{SEPARATOR}{OPEN}argument key="k&quot;" type="string"{SEPARATOR}'
        f'v {CLOSE}argument{SEPARATOR}{OPEN}argument key="n" type="number"{SEPARATOR}1e2{CLOSE}argument{SEPARATOR}'
        f"{CLOSE}call{SEPARATOR}"
    )
    cut = f'{OPEN}call tool="c" index="3"{SEPARATOR}{OPEN}json type="object"{SEPARATOR}raw'
    assert _written_in_tags(pieces(turn + cut, TAGS)) == [("a&b", 'k" (string): v ', "n (number): 1e2")]
    raw = f"{cut}{CLOSE}json{SEPARATOR}{CLOSE}call{SEPARATOR}"
    assert _written_in_tags(pieces(turn + raw, TAGS))[1:] == [("c", "raw")]
