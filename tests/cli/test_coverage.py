"""``constrained-k2 coverage``, as text and as JSON."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from constrained_k2.cli import main
from constrained_k2.formats.kimi_k3 import KIMI_K3
from scripts.write_docs import keyword_table

KEPT = {"name": "kept", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
RELAXED = {"name": "relaxed", "parameters": {"type": "object", "minProperties": 70}}
REFUSED = {"name": "refused", "parameters": {"type": "object", "properties": {"a": {"not": {}}}, "required": ["a"]}}
NOTHING = {"name": "nothing"}


def written(tmp_path: Path, document: Any) -> str:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(document))
    return str(path)


@pytest.mark.parametrize(
    "document",
    [
        [{"type": "function", "function": KEPT}, NOTHING],
        {"model": "kimi", "tools": [{"type": "function", "function": KEPT}, {"type": "function", "function": NOTHING}]},
        [{"name": "kept", "inputSchema": KEPT["parameters"]}, NOTHING],
        {"tools": [{"name": "kept", "inputSchema": KEPT["parameters"]}, NOTHING]},
        {
            "jsonrpc": "2.0",
            "id": 1,
            "result": {"tools": [{"name": "kept", "inputSchema": KEPT["parameters"]}, NOTHING]},
        },
        [{"name": "kept", "input_schema": KEPT["parameters"]}, {"type": "custom", **NOTHING}],
        {"model": "m", "tools": [{"name": "kept", "input_schema": KEPT["parameters"]}, NOTHING], "messages": []},
        [{"type": "function", "function": {"name": "kept", "inputSchema": KEPT["parameters"]}}, NOTHING],
    ],
    ids=["list", "request", "mcp", "mcp result", "mcp answer", "anthropic", "anthropic request", "mixed"],
)
def test_fully_enforced_tools(tmp_path: Path, document: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", written(tmp_path, document)]) == 0
    said = capsys.readouterr().out
    assert "kept" in said
    assert "2 of 2 fully enforced by llguidance" in said
    assert main(["coverage", written(tmp_path, document), "--json"]) == 0
    kept, nothing = json.loads(capsys.readouterr().out)
    assert [use["pointer"] for use in kept["enforced"]] == ["#/properties/a/type", "#/type"]
    assert [use["pointer"] for use in nothing["enforced"]] == ["#/type"]


def test_undeclared_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for setting, narrowed in (("allow", []), ("forbid", ["#/properties"])):
        assert main(["coverage", written(tmp_path, KEPT["parameters"]), "--undeclared-keys", setting, "--json"]) == 0
        (tool,) = json.loads(capsys.readouterr().out)
        assert [use["pointer"] for use in tool["narrowed"]] == narrowed


def test_relaxed_and_refused_tools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", written(tmp_path, [KEPT, RELAXED, REFUSED])]) == 1
    said = capsys.readouterr().out
    assert "relaxed #/minProperties" in said
    assert "refused #/properties/a" in said and "no value satisfies" in said
    assert "1 of 3 fully enforced" in said


@pytest.mark.slow
def test_arguments_of_kimi_k3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """xgrammar has no grammar of raw strings."""
    open_group = {"type": "object", "properties": {"p": {"type": "string", "pattern": "(a+)\\1"}}}
    path = written(tmp_path, [{"name": "f", "inputSchema": open_group}])
    for options, said in (
        ([], "a back-reference to a group of more than"),
        (["--format", "kimi-k3"], "a back-reference to a group of more than"),
        (["--format", "kimi-k3", "--engine", "xgrammar"], "with LLGuidance only"),
    ):
        assert main(["coverage", path, *options]) == 1
        assert said in " ".join(capsys.readouterr().out.split())


def test_keywords_of_kimi_k3_are_those_of_kimi_k2() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "keywords.md").read_text(encoding="utf-8")
    known = [line.split(" | ")[:2] for line in page.splitlines() if line.startswith("|")]
    written = [line.removesuffix(" |").split(" | ") for line in keyword_table(KIMI_K3).splitlines()]
    assert len(written) > 30
    assert written[2:] == known[2:]


def test_json_from_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(RELAXED["parameters"])))
    assert main(["coverage", "-", "--json"]) == 1
    (tool,) = json.loads(capsys.readouterr().out)
    assert tool["tool"] == "schema"
    assert tool["sound"] is False
    assert tool["relaxed"][0]["pointer"] == "#/minProperties"
    assert tool["enforced"] == [{"pointer": "#/type"}]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("not json", "holds no tools"),
        (7, "holds no tools"),
        ({"a": 1}, "no keyword of JSON Schema"),
        ({"tools": {}}, "no keyword of JSON Schema"),
        ({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601}}, "answer to tools/list"),
        ({"result": {"content": []}}, "answer to tools/list"),
        ([{"type": "web_search_20250305", "name": "web_search"}], "the type is 'web_search_20250305'"),
        ([{"name": "f", "parameters": 7}], "must be a JSON object"),
        ([{"parameters": {}}], 'tools[0]: missing "name"'),
        ([[]], 'missing "name"'),
    ],
)
def test_bad_input(tmp_path: Path, document: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", written(tmp_path, document)]) == 2
    assert said in capsys.readouterr().err


def test_unreadable_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", str(tmp_path / "missing.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    (tmp_path / "broken.json").write_text("{")
    assert main(["coverage", str(tmp_path / "broken.json")]) == 2
    assert "is not JSON" in capsys.readouterr().err


def custom(definition: str, syntax: str = "lark") -> dict[str, Any]:
    return {"name": "f", "format": {"type": "grammar", "syntax": syntax, "definition": definition}}


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize(
    ("tool", "status"),
    [
        (custom("[a-z]+", "regex"), 0),
        (custom('start: "a" /[0-9]+/'), 0),
        ({"name": "f", "format": {"type": "text"}}, 0),
        (custom("(?=a)[a-z]+", "regex"), 1),
        (custom("start: ("), 1),
        (custom("start: nope"), 1),
        (custom("x", "peg"), 1),
        (custom("start: /a/\n" + "// more\n" * 3000), 1),
    ],
    ids=range(8),
)
def test_grammars_of_custom_tools(tmp_path: Path, tool: dict[str, Any], status: int, *, is_nested: bool) -> None:
    """Custom grammars are read as by the server: a grammar that it refuses is reported as refused."""
    entry = {"type": "custom", "custom": tool} if is_nested else {"type": "custom", **tool}
    assert main(["coverage", written(tmp_path, [entry])]) == status


def test_functions_of_a_namespace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A namespace's functions have the names that vLLM shows to the model."""
    functions = [
        {"type": "function", "name": "g", "parameters": {"properties": {"a": {}}}},
        {"type": "custom", "name": "h"},
    ]
    path = written(tmp_path, [{"type": "namespace", "name": "mcp", "description": "", "tools": functions}])
    assert main(["coverage", path, "--json"]) == 0
    assert [entry["tool"] for entry in json.loads(capsys.readouterr().out)] == ["mcp__g"]
