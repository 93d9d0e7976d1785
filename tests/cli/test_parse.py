"""``constrained-k2 parse``, as a person and as a script use it."""

import json
from pathlib import Path
from typing import Any

import pytest

from constrained_k2 import ToolCall, Vocabulary, render_tool_calls
from tests.cli.conftest import Run

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
def test_a_good_completion(tmp_path: Path, tools: Any, level: str, run: Run) -> None:
    tools_file = written(tmp_path, json.dumps(tools), "tools.json")
    said = run("parse", written(tmp_path, GOOD), "--tools", tools_file, "--level", level)
    assert said.code == 0
    assert all(text in said.out for text in ("'Hm.'", "'Look:'", 'functions.search:0 {"q": "北京"}'))
    assert "recovery" not in said.out


def test_recoveries_are_shown(run: Run) -> None:
    text = '<|tool_call_begin|>search:2<|tool_call_argument_begin|>{"q": "x",}<|tool_call_end|>'
    said = run("parse", "-", "--json", stdin=text)
    (call,) = said.json["tool_calls"]
    assert (said.code, call["id"], call["arguments"]) == (0, "functions.search:2", '{"q": "x"}')
    assert (call["written"], call["errors"]) == ('{"q": "x",}', [])
    assert call["recoveries"] == ["no_section", "bare_id", "trailing_comma"]
    assert run("parse", "-", "--json", "--level", "strict", stdin=text).json["tool_calls"] == []


@pytest.mark.parametrize(
    ("id_", "arguments", "error"),
    [
        ("functions.search:0", '{"q": 1}', "at $.q: 1 is not of type 'string'"),
        ("functions.search:0", "{}", "'q' is a required property"),
        ("functions.search:0", '{"q": "x", "at": "nowhere"}', "is not a 'ipv4'"),
        ("functions.search:0", "[1]", "not a JSON object"),
        ("functions.find:0", "{}", "unknown tool 'find'"),
    ],
)
def test_what_is_wrong_with_a_call(tmp_path: Path, id_: str, arguments: str, error: str, run: Run) -> None:
    text = GOOD.replace("functions.search:0", id_).replace('{"q": "北京"}', arguments)
    tools = written(tmp_path, json.dumps([TOOL]), "tools.json")
    said = run("parse", "-", "--json", "--tools", tools, stdin=text)
    assert said.code == 1
    assert any(error in each for each in said.json["tool_calls"][0]["errors"])
    said = run("parse", written(tmp_path, text), "--tools", tools)
    assert said.code == 1 and error in said.out


@pytest.mark.parametrize(
    ("text", "flags", "error"),
    [
        (GOOD[:130], (), "functions.search:0 is cut off"),
        (GOOD[:70], (), "without an id is cut off"),
        (GOOD.replace('"北京"', "NaN"), (), "functions.search:0 is cut off"),
        (GOOD.replace('北京"', "北京"), (), "functions.search:0 is cut off"),
        (GOOD.replace("functions.search:0", "call_1"), (), "<|tool_call_begin|> is left in the text"),
        (GOOD.replace("functions.", ""), ("--level", "strict"), "not a call"),
    ],
)
def test_what_else_is_wrong(text: str, flags: tuple[str, ...], error: str, run: Run) -> None:
    said = run("parse", "-", "--json", *flags, stdin=text)
    assert said.code == 1
    assert not said.json["tool_calls"]
    assert any(error in each for each in said.json["errors"])


def test_token_ids(tmp_path: Path, tokenizer: Path, run: Run) -> None:
    vocabulary = Vocabulary.from_pretrained(tokenizer)
    completions = [vocabulary.encode("Hello"), render_tool_calls([ToolCall("search", 0, '{"q": "é"}')], vocabulary)]
    file = written(tmp_path, "\n".join(map(json.dumps, [*completions, completions[1][:-2]])), "ids.jsonl")
    command = ["parse", file, "--ids", "--tokenizer", str(tokenizer)]
    said = run(*command, "--json")
    found = [json.loads(line) for line in said.out.splitlines()]
    assert said.code == 1
    assert [completion["content"] for completion in found] == ["Hello", "", ""]
    assert [len(completion["tool_calls"]) for completion in found] == [0, 1, 0]
    assert found[2]["cut_calls"] == [{"header": "functions.search:0", "arguments": '{"q": "é"}'}]
    said = run(*command)
    assert said.code == 1 and "functions.search:0 is cut off" in said.out


@pytest.mark.parametrize(
    ("content", "options", "tools", "error"),
    [
        ("{", ("--ids", "--tokenizer"), None, "line 1: is not JSON"),
        ('\n["a"]', ("--ids", "--tokenizer"), None, "line 2: is not an array"),
        ("[99999999]", ("--ids", "--tokenizer"), None, "vocabulary"),
        (GOOD, ("--ids",), None, "Give --tokenizer"),
        (None, (), None, "cannot be read"),
        (b"\xff\xfe", (), None, "cannot be read"),
        (GOOD, (), "5", "holds no tools"),
        (GOOD, (), "[{}]", 'missing "name"'),
        (GOOD, (), '[{"name": "search", "parameters": {"type": 5}}]', "schema cannot be used"),
        (GOOD, (), '[{"name": "search", "parameters": {"$ref": "https://example.com/s"}}]', "schema cannot be used"),
    ],
)
def test_bad_use(
    content: str | bytes | None,
    options: tuple[str, ...],
    tools: str | None,
    error: str,
    tmp_path: Path,
    tokenizer: Path,
    run: Run,
) -> None:
    if content is not None:
        (tmp_path / "missing").write_bytes(content.encode() if isinstance(content, str) else content)
    given = [*options, *([str(tokenizer)] if "--tokenizer" in options else [])]
    given += ["--tools", written(tmp_path, tools, "tools.json")] if tools else []
    said = run("parse", str(tmp_path / "missing"), *given)
    assert said.code == 2 and error in said.err


KIMI_K3 = (
    "Hm.<|close|>think<|sep|><|open|>response<|sep|>Look:<|close|>response<|sep|><|open|>tools<|sep|>"
    '<|open|>call tool="search" index="1"<|sep|><|open|>argument key="q" type="string"<|sep|>北京<|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
)


@pytest.mark.parametrize("level", ["strict", "tolerant"])
def test_a_completion_of_kimi_k3(tmp_path: Path, level: str, run: Run) -> None:
    options = ["--format", "kimi-k3", "--in-reasoning", "--level", level, "--json"]
    options += ["--tools", written(tmp_path, json.dumps([TOOL]), "tools.json")]
    said = run("parse", written(tmp_path, KIMI_K3), *options)
    assert said.code == 0
    assert (said.json["reasoning"], said.json["content"], said.json["errors"]) == ("Hm.", "Look:", [])
    (call,) = said.json["tool_calls"]
    assert (call["name"], call["index"], call["arguments"]) == ("search", 1, '{"q": "北京"}')
    said = run("parse", written(tmp_path, f"<|open|>x{KIMI_K3}"), *options)
    assert said.code == 1 and "<|open|> is left in the text" in said.json["errors"][0]
