"""``constrained-k2 parse``, as a person and as a script use it."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from constrained_k2 import ToolCall, Vocabulary, render_tool_calls
from constrained_k2.cli import main
from constrained_k2.testing import write_tokenizer

GOOD = (
    "<think>Hm.</think>Look:<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0"
    '<|tool_call_argument_begin|>{"q": "北京"}<|tool_call_end|><|tool_calls_section_end|><|im_end|>'
)
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}, "at": {"format": "ipv4"}}, "required": ["q"]}
TOOL = {"name": "search", "parameters": SCHEMA}


def written(tmp_path: Path, text: str, name: str = "completion.txt") -> str:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    "tools",
    [[TOOL], {"tools": [{"type": "function", "function": TOOL}]}, [{"name": "search", "inputSchema": SCHEMA}]],
    ids=["list", "request", "mcp"],
)
@pytest.mark.parametrize("level", ["strict", "tolerant"])
def test_a_good_completion(tmp_path: Path, tools: Any, level: str, capsys: pytest.CaptureFixture[str]) -> None:
    tools_file = written(tmp_path, json.dumps(tools), "tools.json")
    assert main(["parse", written(tmp_path, GOOD), "--tools", tools_file, "--level", level]) == 0
    said = capsys.readouterr().out
    assert "'Hm.'" in said
    assert "'Look:'" in said
    assert 'functions.search:0 {"q": "北京"}' in said
    assert "recovery" not in said


def parsed(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *flags: str
) -> tuple[int, dict[str, Any]]:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    code = main(["parse", "-", "--json", *flags])
    return code, json.loads(capsys.readouterr().out)


def test_recoveries_are_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = '<|tool_call_begin|>search:2<|tool_call_argument_begin|>{"q": "x",}<|tool_call_end|>'
    code, found = parsed(text, monkeypatch, capsys)
    (call,) = found["tool_calls"]
    assert (code, call["id"], call["arguments"]) == (0, "functions.search:2", '{"q": "x"}')
    assert (call["written"], call["errors"]) == ('{"q": "x",}', [])
    assert call["recoveries"] == ["no_section", "bare_id", "trailing_comma"]
    assert parsed(text, monkeypatch, capsys, "--level", "strict")[1]["tool_calls"] == []


@pytest.mark.parametrize(
    ("id_", "arguments", "said"),
    [
        ("functions.search:0", '{"q": 1}', "at $.q: 1 is not of type 'string'"),
        ("functions.search:0", "{}", "'q' is a required property"),
        ("functions.search:0", '{"q": "x", "at": "nowhere"}', "is not a 'ipv4'"),
        ("functions.search:0", "[1]", "not a JSON object"),
        ("functions.find:0", "{}", "unknown tool 'find'"),
    ],
)
def test_what_is_wrong_with_a_call(
    tmp_path: Path,
    id_: str,
    arguments: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = GOOD.replace("functions.search:0", id_).replace('{"q": "北京"}', arguments)
    tools = written(tmp_path, json.dumps([TOOL]), "tools.json")
    code, found = parsed(text, monkeypatch, capsys, "--tools", tools)
    assert code == 1
    assert any(said in error for error in found["tool_calls"][0]["errors"])
    assert main(["parse", written(tmp_path, text), "--tools", tools]) == 1
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        (GOOD[:130], (), "functions.search:0 is cut off"),
        (GOOD[:70], (), "without an id is cut off"),
        (GOOD.replace('"北京"', "NaN"), (), "functions.search:0 is cut off"),
        (GOOD.replace('北京"', "北京"), (), "functions.search:0 is cut off"),
        (GOOD.replace("functions.search:0", "call_1"), (), "<|tool_call_begin|> is left in the text"),
        (GOOD.replace("functions.", ""), ("--level", "strict"), "not a call"),
    ],
)
def test_what_else_is_wrong(
    text: str, flags: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = parsed(text, monkeypatch, capsys, *flags)
    assert code == 1
    assert not found["tool_calls"]
    assert any(said in error for error in found["errors"])


def test_token_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tokenizer(tmp_path)
    vocabulary = Vocabulary.from_pretrained(tmp_path)
    completions = [vocabulary.encode("Hello"), render_tool_calls([ToolCall("search", 0, '{"q": "é"}')], vocabulary)]
    file = written(tmp_path, "\n".join(map(json.dumps, [*completions, completions[1][:-2]])), "ids.jsonl")
    assert main(["parse", file, "--ids", "--tokenizer", str(tmp_path), "--json"]) == 1
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [completion["content"] for completion in found] == ["Hello", "", ""]
    assert [len(completion["tool_calls"]) for completion in found] == [0, 1, 0]
    assert found[2]["cut_calls"] == [{"header": "functions.search:0", "arguments": '{"q": "é"}'}]
    assert main(["parse", file, "--ids", "--tokenizer", str(tmp_path)]) == 1
    assert "functions.search:0 is cut off" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "line 1: is not JSON"), ('\n["a"]', "line 2: is not an array"), ("[99999999]", "vocabulary")],
)
def test_invalid_ids(tmp_path: Path, content: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_tokenizer(tmp_path)
    assert main(["parse", written(tmp_path, content), "--ids", "--tokenizer", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def test_bad_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, GOOD)
    assert main(["parse", file, "--ids"]) == 2
    assert "Give --tokenizer" in capsys.readouterr().err
    assert main(["parse", str(tmp_path / "missing")]) == 2
    for tools, said in [("5", "holds no tools"), ("[{}]", 'missing "name"'), ('[{"name": "search", "parameters": {"type": 5}}]', "schema cannot be used"),
                        ('[{"name": "search", "parameters": {"$ref": "https://example.com/s"}}]', "schema cannot be used")]:  # fmt: skip
        assert main(["parse", file, "--tools", written(tmp_path, tools, "tools.json")]) == 2
        assert said in capsys.readouterr().err
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    assert main(["parse", str(tmp_path / "latin")]) == 2
    assert "cannot be read" in capsys.readouterr().err


KIMI_K3 = (
    "Hm.<|close|>think<|sep|><|open|>response<|sep|>Look:<|close|>response<|sep|><|open|>tools<|sep|>"
    '<|open|>call tool="search" index="1"<|sep|><|open|>argument key="q" type="string"<|sep|>北京<|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
)


@pytest.mark.parametrize("level", ["strict", "tolerant"])
def test_a_completion_of_kimi_k3(tmp_path: Path, level: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--format", "kimi-k3", "--in-reasoning", "--level", level, "--json"]
    options += ["--tools", written(tmp_path, json.dumps([TOOL]), "tools.json")]
    assert main(["parse", written(tmp_path, KIMI_K3), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["reasoning"], found["content"], found["errors"]) == ("Hm.", "Look:", [])
    (call,) = found["tool_calls"]
    assert (call["name"], call["index"], call["arguments"]) == ("search", 1, '{"q": "北京"}')
    assert main(["parse", written(tmp_path, f"<|open|>x{KIMI_K3}"), *options]) == 1
    assert "<|open|> is left in the text" in json.loads(capsys.readouterr().out)["errors"][0]
