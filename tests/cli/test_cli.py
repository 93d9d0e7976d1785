import json
import subprocess
import sys
from pathlib import Path

import pytest

from constrained_k2.cli import main, parse


@pytest.mark.parametrize("verb", ["ab", "coverage", "demo", "doctor", "explain", "grammar", "parse", "render"])
def test_help_shows_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    assert f"example: constrained-k2 {verb}" in capsys.readouterr().out


@pytest.mark.slow
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


def test_text_that_no_encoding_has(tmp_path: Path) -> None:
    call = '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"\\ud800": 1}<|tool_call_end|>'
    (tmp_path / "completion").write_text(f"<|tool_calls_section_begin|>{call}<|tool_calls_section_end|><|im_end|>")
    parameters = {"type": "object", "additionalProperties": {"type": "string"}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    (tmp_path / "tools").write_text(json.dumps(tools))
    command = ["parse", str(tmp_path / "completion"), "--tools", str(tmp_path / "tools"), "--json"]
    done = subprocess.run([sys.executable, "-m", "constrained_k2", *command], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"is not of type 'string'" in done.stdout


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(parse, "run", interrupted)
    assert main(["parse"]) == 130
    assert capsys.readouterr().err == "constrained-k2: interrupted\n"


@pytest.mark.parametrize("arguments", [[], ["nope"], ["demo", "--requests", "0"], ["demo", "--seed", "x"]])
def test_bad_use(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err
