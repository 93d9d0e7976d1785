import json
import subprocess
import sys
from pathlib import Path

import pytest

from constrained_k2.cli import main, parse
from tests.cli.conftest import Run
from tests.cli.test_parse import GOOD

HI = '{"messages": [{"role": "user", "content": "hi"}]}'


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


@pytest.mark.parametrize("arguments", [[], ["nope"], ["ab", "--count", "0"], ["demo", "--seed", "x"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


RENDER, IDS = "render - --tokenizer {tokenizer}", "parse - --ids --tokenizer {tokenizer}"
OFFLINE, ONLINE = "explain --tokenizer {tokenizer} --offline", "explain --tokenizer {tokenizer} http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("command", "stdin", "error"),
    [
        ("coverage -", '"not json"', "holds no tools"),
        ("coverage -", "{", "is not JSON"),
        ("coverage -", "7", "holds no tools"),
        ("coverage -", '{"a": 1}', "no keyword of JSON Schema"),
        ("coverage -", '{"tools": {}}', "no keyword of JSON Schema"),
        ("coverage -", '{"jsonrpc": "2.0", "id": 1, "error": {"code": -32601}}', "answer to tools/list"),
        ("coverage -", '{"result": {"content": []}}', "answer to tools/list"),
        ("coverage -", '[{"type": "web_search_20250305", "name": "x"}]', "the type is 'web_search_20250305'"),
        ("coverage -", '[{"name": "f", "parameters": 7}]', "must be a JSON object"),
        ("coverage -", '[{"parameters": {}}]', 'tools[0]: missing "name"'),
        ("coverage -", "[[]]", 'missing "name"'),
        ("coverage /missing", "", "cannot be read"),
        (IDS, "{", "line 1: is not JSON"),
        (IDS, '\n["a"]', "line 2: is not an array"),
        (IDS, "[99999999]", "vocabulary"),
        ("parse - --ids", "", "Give --tokenizer"),
        ("parse /missing", "", "cannot be read"),
        ("parse {bytes}", "", "cannot be read"),
        ("parse {good} --tools -", "5", "holds no tools"),
        ("parse {good} --tools -", "[{}]", 'missing "name"'),
        ("parse {good} --tools -", '[{"name": "search", "parameters": {"type": 5}}]', "schema cannot be used"),
        (
            "parse {good} --tools -",
            '[{"name": "search", "parameters": {"$ref": "http://x/s"}}]',
            "schema cannot be used",
        ),
        (RENDER, "{", "is not JSON"),
        (RENDER, "[]", "body: must be an object"),
        (RENDER, '{"messages": [{"role": 5}]}', "messages[0].role"),
        (f"{RENDER} --template /nowhere", HI, "cannot be read"),
        (f"{RENDER} --diff http://127.0.0.1:9", HI, "ConnectError"),
        (f"{RENDER} --diff nonsense", HI, "--diff: malformed address"),
        (RENDER, HI.replace("}]", '}], "chat_template_kwargs": {"messages": []}'), "is not a template variable"),
        (RENDER, HI.replace("}]", '}], "chat_template_kwargs": []'), "must be an object"),
        (RENDER, HI.replace("}]", '}], "thinking": "off"'), "thinking: must be a boolean"),
        (RENDER, HI.replace("}]", '}], "thinking": {"type": []}'), "thinking.type: must be 'enabled' or 'disabled'"),
        ("explain http://127.0.0.1:1 -", HI, "--tokenizer: is missing"),
        ("explain --tokenizer {tokenizer}", "", "expected two sources"),
        (ONLINE, "", "expected two sources"),
        (f"{ONLINE} -", HI, "Check the address"),
        (f"{ONLINE} -", "[]", "is not a JSON object"),
        (f"{OFFLINE} a.json b.json", "", "expected one source"),
        (f"{OFFLINE} a.json", "", "needs --completion"),
    ],
)
def test_bad_use(command: str, stdin: str, error: str, tmp_path: Path, tokenizer: Path, run: Run) -> None:
    files = {"good": tmp_path / "good", "bytes": tmp_path / "bytes", "tokenizer": tokenizer}
    files["good"].write_text(GOOD, encoding="utf-8")
    files["bytes"].write_bytes(b"\xff\xfe")
    said = run(*command.format(**files).split(), stdin=stdin)
    assert said.code == 2 and error in said.err
