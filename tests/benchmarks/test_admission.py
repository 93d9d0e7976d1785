"""The benchmark of admission runs, and its second arm compiles what the first one does not."""

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from benchmarks import admission
from benchmarks.admission import compiling_all, main, measure
from constrained_k2 import ToolCallSpec
from constrained_k2.compiler.coverage import byte_compiler
from constrained_k2.vllm_plugin.shared.server import Server
from scripts.bundled_samples.ordinary import TOOLS


@pytest.mark.slow
def test_both_arms(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "constrains", Server.constrains)
    monkeypatch.setattr(admission, "mcp_tools", lambda: list(TOOLS))
    main(["--sizes", "1", "16", "--repeats", "2", "--pauses", "3"])
    printed = capsys.readouterr().out
    assert [printed.count(text) for text in ("| 1 | ", "| 16 | ", "at most ")] == [2, 2, 3]
    found = measure(TOOLS, (1, 16), 2, 3, "again").requests
    assert [(row.tools, row.cpu.count, row.delay.count, row.control.count) for row in found] == [
        (1, 2, 3, 3), (16, 2, 3, 3),
    ]  # fmt: skip
    assert all(row.cpu.p50 >= row.on_loop.p50 > 0 and row.delay.max > 0 for row in found)


def test_the_second_arm_admits_nothing_by_its_shape() -> None:
    spec = ToolCallSpec.from_openai({"tools": [{"type": "function", "function": {"name": "f"}}]})
    compiled = byte_compiler().compile(spec, check=False)
    with compiling_all():
        compiled.admit()
    assert compiled.fast_path_count == 0
    compiled.admit()
    assert compiled.fast_path_count == 1
