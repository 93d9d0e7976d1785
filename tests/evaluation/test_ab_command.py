"""``constrained-k2 ab`` as a person uses it: arms, exit codes, resuming, and bad use."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from constrained_k2.cli import main
from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation.ab.arms import parse_arm
from constrained_k2.evaluation.ab.directory import RunDirectory
from constrained_k2.evaluation.ab.runner import AttemptLimits, Endpoint
from tests.cli.conftest import Run
from tests.evaluation.fake_endpoint import FakeEndpoint, body, write_lines

NOBODY = "http://127.0.0.1:9"


@pytest.mark.slow
def test_the_command_line(tmp_path: Path, run: Run) -> None:
    samples = write_lines(tmp_path / "s.jsonl", [body(f"#{number}") for number in range(5)] + ["{"])
    with FakeEndpoint(metrics="constrained_k2_masked_steps_total 4\n") as endpoint:
        command = ["ab", endpoint.url, "--samples", str(samples), "--output", str(tmp_path / "run")]
        first, again = run(*command, "--json"), run(*command)
        assert (first.code, again.code, len(endpoint.asked)) == (0, 0, 10)
    assert "line 6: not JSON" in first.err and "schema_accuracy" in again.out
    assert first.json["paired_samples"] == 5 and list(first.json["arms"]) == ["unconstrained", "constrained"]
    assert first.json == json.loads((tmp_path / "run" / "scores.json").read_text())
    scored = run("ab", "--score-only", str(tmp_path / "run"), "--json")
    assert (scored.code, scored.json) == (0, first.json)
    (tmp_path / "run" / "run.sqlite").unlink()
    said = run("ab", "--score-only", str(tmp_path / "run"))
    assert said.code == 2 and "holds no run" in said.err
    bad = write_lines(tmp_path / "bad.jsonl", [body(fake={"calls": [["x", "nope", "{}"]]})])
    with FakeEndpoint() as endpoint:
        command = ["ab", endpoint.url, "--samples", str(bad), "--output", str(tmp_path / "bad"), "--json"]
        assert run(*command, "--seed", "-1").code == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--samples", "x.jsonl"], "no server is named"),
        (["--model", "kimi-k2"], "no server is named"),
        (["--official", "x.jsonl"], "no server is named"),
        ([NOBODY, "--official", "x.jsonl"], "no samples are named"),
        ([NOBODY, "--arm", "nope"], "unknown preset"),
        ([NOBODY, "--arm", "constrained", "--arm", "constrained"], "given twice"),
        ([NOBODY, "--samples", "/nonexistent"], "cannot be read"),
        ([NOBODY, "--count", "1"], "models cannot be listed"),
        (["--score-only", "/nonexistent"], "holds no run"),
        (["ftp://x"], "malformed address"),
        ([], "no server is named"),
        (["--serve", "/nonexistent"], "holds no checkpoint"),
        ([NOBODY, "--serve", "/"], "URL: --serve starts its own servers"),
        (["--arm", f"a={NOBODY}", "--serve", "/"], "--arm: --serve starts its own servers"),
        ([NOBODY, "--timeout", "nan"], "more than 0 and finite"),
        ([NOBODY, "--samples", "NONE"], "no samples, 2 malformed lines, such as line 1: not JSON"),
    ],
)
def test_bad_use(arguments: list[str], words: str, tmp_path: Path, run: Run) -> None:
    write_lines(none := tmp_path / "none.jsonl", ["{", "[]"])
    said = run("ab", *(each.replace("NONE", str(none)) for each in arguments), "--output", str(tmp_path / "run"))
    assert said.code == 2 and words in said.err


def test_a_full_disk_ends_the_run_and_not_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: FakeEndpoint, run: Run
) -> None:
    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(RunDirectory, "add", full)
    samples = write_lines(tmp_path / "s.jsonl", [body(f"#{number}") for number in range(5)])
    command = ["ab", endpoint.url, "--samples", str(samples), "--output", str(tmp_path / "run"), "--json"]
    said = run(*command)
    assert said.code == 2 and "disk is full" in said.err
    monkeypatch.undo()
    assert main(command) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nope", "unknown preset"), ("plain", "unknown preset"), ("a={", "not JSON"), ("a={}", "malformed address"),
        ("a=localhost:8000", "malformed address"), ('a={"url": 7}', "got `int` - at `\\$.url`"), ("../a=http://x", "malformed name"),
        ('a={"url": "http://x", "body": []}', "Expected `object`"), ('a={"url": "http://x", "key": "k"}', "unknown fields"),
        ('a={"url": "http://x", "preset": "best"}', "unknown preset"),
    ],
)  # fmt: skip
def test_arms_that_are_none(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_arm(text)


def test_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_arm("xgrammar", "http://x/v1").url == "http://x"
    assert parse_arm("constrained=http://y").is_constrained
    assert not parse_arm("stock=http://y").is_constrained
    arm = parse_arm('m={"url": "http://m", "model": "k", "api_key_env": "M_KEY", "body": {"top_p": 1}}')
    assert arm.added == {"top_p": 1}
    with pytest.raises(InvalidRequest, match="the environment variable 'M_KEY' is not set"):
        Endpoint(arm, AttemptLimits())
    monkeypatch.setenv("M_KEY", "secret")
    Endpoint(arm, AttemptLimits())
    assert "secret" not in json.dumps(arm.identity)
