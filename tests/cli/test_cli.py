import subprocess
import sys
from pathlib import Path

import pytest

from constrained_k2.cli import bench, main


@pytest.mark.parametrize("verb", ["ab", "bench", "coverage", "demo", "doctor", "grammar", "parse", "render"])
def test_help_shows_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    assert f"example: constrained-k2 {verb}" in capsys.readouterr().out


def test_standard_input_that_is_not_text_and_output_that_is_closed() -> None:
    command = [sys.executable, "-m", "constrained_k2", "parse", "-"]
    done = subprocess.run(command, input=b"\xff\xfe", capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"constrained-k2: standard input: cannot be read")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.write(b"hello " * 100_000)
        process.stdin.close()
        assert process.stderr.read() == b""


def test_bench_needs_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "CLONE", tmp_path)
    assert main(["bench", "--quick"]) == 2
    assert "Clone the repository" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["nope"], ["demo", "--requests", "0"], ["demo", "--seed", "x"]])
def test_bad_use(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err
