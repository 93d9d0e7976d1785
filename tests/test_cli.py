import subprocess
import sys

import pytest

from constrained_k2.cli import main
from constrained_k2.evaluation.samples import built_in_samples
from constrained_k2.evaluation.scores import Answer, Score, score, total


@pytest.mark.parametrize("verb", ["ab", "bench", "coverage", "demo", "doctor", "grammar", "parse", "render"])
def test_help_shows_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    assert f"example: constrained-k2 {verb}" in capsys.readouterr().out


def test_standard_input_that_is_no_text_and_output_that_nobody_reads() -> None:
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


@pytest.mark.parametrize("arguments", [[], ["nope"], ["demo", "--requests", "0"], ["demo", "--seed", "x"]])
def test_bad_use(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_samples_cover_what_the_demo_claims() -> None:
    samples = list(built_in_samples(100))
    assert {(sample.choice, sample.stream) for sample in samples} == {
        (choice, stream) for choice in ("required", "named", "auto", "none") for stream in (False, True)
    }
    assert {sample.first_index for sample in samples} == {0, 1}
    assert {sample.max_calls for sample in samples} == {None, 0, 1}
    assert [sample.body for sample in built_in_samples(100)] == [sample.body for sample in samples]


def test_scores() -> None:
    name, good = "list_open_tabs", "{}"
    sample = next(
        sample
        for sample in built_in_samples(100)
        if (sample.choice, sample.first_index, sample.max_calls) == ("required", 0, None)
        and name in {tool["function"]["name"] for tool in sample.body["tools"]}
    )
    right = (f"functions.{name}:0", name, good)
    assert score(sample, Answer("tool_calls", calls=(right,))) == Score(1, 1, 1, 1, 1, 1, 1, 1, 0)
    for wrong in (
        Answer("tool_calls"),
        Answer("tool_calls", calls=((f"functions.{name}:1", name, good),)),
        Answer("tool_calls", calls=(("functions.nope:0", "nope", good),)),
        Answer("tool_calls", calls=((f"functions.{name}:0", name, "{"),)),
        Answer("tool_calls", calls=((f"functions.{name}:0", name, "[]"),)),
    ):
        assert score(sample, wrong).served == 0
        assert score(sample, wrong).due == 1
    assert score(sample, Answer("length")) == Score(requests=1)
    assert total([Score(1, 1), Score(1, 0)]).requests == 2
