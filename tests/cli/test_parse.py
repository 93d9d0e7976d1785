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
KIMI_K3 = (
    "Hm.<|close|>think<|sep|><|open|>response<|sep|>Look:<|close|>response<|sep|><|open|>tools<|sep|>"
    '<|open|>call tool="search" index="1"<|sep|><|open|>argument key="q" type="string"<|sep|>北京<|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
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
@pytest.mark.parametrize(
    ("text", "options", "index"),
    [(GOOD, [], 0), (KIMI_K3, ["--format", "kimi-k3", "--in-reasoning"], 1)],
    ids=["Kimi K2", "Kimi K3"],
)
def test_a_good_completion(
    text: str, options: list[str], index: int, level: str, tools: Any, tmp_path: Path, run: Run
) -> None:
    options = [*options, "--tools", written(tmp_path, json.dumps(tools), "tools.json"), "--level", level]
    said = run("parse", written(tmp_path, text), *options)
    assert said.code == 0
    assert all(part in said.out for part in ("'Hm.'", "'Look:'", f'functions.search:{index} {{"q": "北京"}}'))
    assert "recovery" not in said.out
    found = run("parse", written(tmp_path, text), *options, "--json").json
    assert (found["reasoning"], found["content"], found["errors"]) == ("Hm.", "Look:", [])
    (call,) = found["tool_calls"]
    assert (call["name"], call["index"], call["arguments"]) == ("search", index, '{"q": "北京"}')


def test_recoveries_are_shown(run: Run) -> None:
    text = '<|tool_call_begin|>search:2<|tool_call_argument_begin|>{"q": "x",}<|tool_call_end|>'
    said = run("parse", "-", "--json", stdin=text)
    (call,) = said.json["tool_calls"]
    assert (said.code, call["id"], call["arguments"]) == (0, "functions.search:2", '{"q": "x"}')
    assert (call["written"], call["errors"]) == ('{"q": "x",}', [])
    assert call["recoveries"] == ["no_section", "bare_id", "trailing_comma"]
    assert run("parse", "-", "--json", "--level", "strict", stdin=text).json["tool_calls"] == []


def changed(call_id: str = "functions.search:0", arguments: str = '{"q": "北京"}') -> str:
    return GOOD.replace("functions.search:0", call_id).replace('{"q": "北京"}', arguments)


@pytest.mark.parametrize(
    ("text", "flags", "calls", "error"),
    [
        (changed(arguments='{"q": 1}'), (), 1, "at $.q: 1 is not of type 'string'"),
        (changed(arguments="{}"), (), 1, "'q' is a required property"),
        (changed(arguments='{"q": "x", "at": "nowhere"}'), (), 1, "is not a 'ipv4'"),
        (changed(arguments="[1]"), (), 1, "not a JSON object"),
        (changed("functions.find:0", "{}"), (), 1, "unknown tool 'find'"),
        (GOOD[:130], (), 0, "functions.search:0 is cut off"),
        (GOOD[:70], (), 0, "without an id is cut off"),
        (changed(arguments='{"q": NaN}'), (), 0, "functions.search:0 is cut off"),
        (changed(arguments='{"q": "北京}'), (), 0, "functions.search:0 is cut off"),
        (changed("call_1"), (), 0, "<|tool_call_begin|> is left in the text"),
        (changed("search:0"), ("--level", "strict"), 0, "not a call"),
        ("<|open|>x", ("--format", "kimi-k3"), 0, "<|open|> is left in the text"),
    ],
)
def test_errors_are_shown(text: str, flags: tuple[str, ...], calls: int, error: str, tmp_path: Path, run: Run) -> None:
    options = ["--tools", written(tmp_path, json.dumps([TOOL]), "tools.json"), *flags]
    said = run("parse", "-", "--json", *options, stdin=text)
    assert said.code == 1 and len(said.json["tool_calls"]) == calls
    found = [*said.json["errors"], *(each for call in said.json["tool_calls"] for each in call["errors"])]
    assert any(error in each for each in found)
    said = run("parse", written(tmp_path, text), *options)
    assert said.code == 1 and error in said.out


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
