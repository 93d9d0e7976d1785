"""The doctor's checks of prompts, on prompts that Kimi's own chat templates rendered."""

import json
import re
from typing import Any

import pytest

from constrained_k2.evaluation.doctor.checks.prompts import (
    judge_content,
    judge_declaration,
    judge_generation_prompt,
    judge_results,
)
from constrained_k2.evaluation.doctor.prompt import Piece, ids_in, opens_reasoning, undue_keys
from tests.evaluation.fake_server import SPECIAL_TEXTS
from tests.kit.data import rendered as rows

RIGHT = ("k2_thinking", "k2_instruct_after_fix_reconstructed", "k2_5_json_instant", "k2_5_json_thinking")
_SPECIAL = re.compile("(" + "|".join(map(re.escape, SPECIAL_TEXTS)) + ")")


def pieces(text: str) -> list[Piece]:
    return [Piece(part, special=part in SPECIAL_TEXTS) for part in _SPECIAL.split(text) if part]


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
        assert judge_generation_prompt(prompt).verdict == ("ok" if row["add_generation_prompt"] else "fault"), row[
            "case"
        ]
        assert is_faulty(row) is not row["add_generation_prompt"], row["case"]
        if row["request"].get("tools"):
            assert judge_declaration(prompt).verdict == "ok", row["case"]
        if row["add_generation_prompt"]:
            assert opens_reasoning(prompt) is (name == "k2_5_json_thinking")


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
