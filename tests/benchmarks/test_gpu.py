"""The GPU benchmark without a GPU: the kernels in Triton's interpreter, uploads in host memory, and its exit codes."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import uploads
from benchmarks.gpu import __main__ as command
from benchmarks.gpu.__main__ import gpu_problem
from benchmarks.report import Report

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_in_tritons_interpreter() -> None:
    """Kernels, graphs and times: tests in a process of its own, where neither vLLM nor an engine is imported."""
    pytest.importorskip("triton", reason="Triton is not installed")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"}
    tests = "-x", "-q", "--noconftest", "-p", "no:cacheprovider", "tests/benchmarks/gpu_interpreted.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *tests], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.mark.parametrize("is_masked", [True, False])
def test_uploads(is_masked: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows get the logits of the reference, and masks that were copied are not copied again."""
    report, copied, apply = Report(), list[int](), uploads.Batch.apply

    def applied(batch: uploads.Batch) -> None:
        apply(batch)
        copied.append(batch.masks._written)  # masks of the step

    monkeypatch.setattr(uploads.Batch, "apply", applied)
    found = uploads.measure(report, is_small=True, rows=3, tools=2, steps=20, is_masked=is_masked)
    new, known = found["new"], found["seen before"]
    assert not report.failed and ("as by the matchers' masks" in capsys.readouterr().out) == is_masked
    assert len(known.sizes) == 20
    assert any(copied[: len(new.sizes)]) and not any(copied[-20:])
    assert all(3 * 24 <= size <= 3 * (24 + 32 * 4) for size in known.sizes)
    assert sorted(known.sizes)[10] < new.whole[-1]


def test_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    if not gpu_problem():
        pytest.skip("there is a GPU")
    assert command.main([]) == 2
    error = capsys.readouterr().err
    assert "python -m benchmarks.gpu: no GPU: " in error and "--interpret" in error


@pytest.mark.parametrize("fault", ["", "wrong", "raises"])
def test_the_exit_code(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that fails ends no other part."""
    ran = []

    def part(report: Report, _: argparse.Namespace) -> None:
        ran.append(part)
        report.check("equal", passed=fault != "wrong")
        if fault == "raises":
            raise ValueError("no such luck")

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(command, "PARTS", {"kernels": part, "uploads": part})
    try:
        assert command.main(["--interpret"]) == int(bool(fault))
    finally:
        os.environ.pop("TRITON_INTERPRET", None)
    assert len(ran) == 2
