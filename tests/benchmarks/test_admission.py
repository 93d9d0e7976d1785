"""The benchmark of admission runs, and its second arm compiles what the first one does not."""

import json
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from benchmarks.admission.__main__ import main
from benchmarks.admission.run import compiling_all
from constrained_k2 import ToolCallSpec
from constrained_k2.compiler.coverage import byte_compiler
from constrained_k2.vllm_plugin.settings import Server


@pytest.mark.slow
def test_both_arms(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "constrains", Server.constrains)
    main(["--shared", str(tmp_path), "--sizes", "1", "16", "--repeats", "2", "--pauses", "3", "--json"])
    found = json.loads(capsys.readouterr().out)
    served, other = found["as served"], found["every schema compiled"]
    assert [row["tools"] for row in served["requests"]] == [1, 16]
    assert [rows["requests"][0]["delay"]["count"] for rows in (served, other)] == [3, 2]
    for rows in (served["requests"], other["requests"]):
        assert all(row["control"]["count"] == row["delay"]["count"] for row in rows)
        assert all(row["cpu"]["p50"] >= row["on_loop"]["p50"] > 0 and row["delay"]["max"] > 0 for row in rows)


def test_the_second_arm_admits_nothing_by_its_shape() -> None:
    spec = ToolCallSpec.from_openai({"tools": [{"type": "function", "function": {"name": "f"}}]})
    compiled = byte_compiler().compile(spec, check=False)
    with compiling_all():
        compiled.admit()
    assert compiled.plain_count == 0
    compiled.admit()
    assert compiled.plain_count == 1
