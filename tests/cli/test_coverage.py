"""``constrained-k2 coverage``, as text and as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from constrained_k2.formats.kimi_k3 import KIMI_K3
from scripts.write_docs import keyword_table
from tests.cli.conftest import Run, Said

KEPT = {"name": "kept", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
RELAXED = {"name": "relaxed", "parameters": {"type": "object", "minProperties": 70}}
REFUSED = {"name": "refused", "parameters": {"type": "object", "properties": {"a": {"not": {}}}, "required": ["a"]}}
NOTHING = {"name": "nothing"}


@pytest.fixture
def coverage(tmp_path: Path, run: Run) -> Run:
    """Run the command on a file with this document."""

    def coverage(document: Any, *options: str) -> Said:
        (tmp_path / "tools.json").write_text(document if isinstance(document, str) else json.dumps(document))
        return run("coverage", str(tmp_path / "tools.json"), *options)

    return coverage


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
def test_fully_enforced_tools(document: Any, coverage: Run) -> None:
    said = coverage(document)
    assert said.code == 0 and "kept" in said.out and "2 of 2 fully enforced by llguidance" in said.out
    said = coverage(document, "--json")
    kept, nothing = said.json
    assert said.code == 0
    assert [use["pointer"] for use in kept["enforced"]] == ["#/properties/a/type", "#/type"]
    assert [use["pointer"] for use in nothing["enforced"]] == ["#/type"]


@pytest.mark.parametrize(("setting", "narrowed"), [("allow", []), ("forbid", ["#/properties"])])
def test_undeclared_keys(setting: str, narrowed: list[str], coverage: Run) -> None:
    said = coverage(KEPT["parameters"], "--undeclared-keys", setting, "--json")
    assert said.code == 0 and [use["pointer"] for use in said.json[0]["narrowed"]] == narrowed


def test_relaxed_and_refused_tools(coverage: Run) -> None:
    said = coverage([KEPT, RELAXED, REFUSED])
    assert said.code == 1
    for text in ("relaxed #/minProperties", "refused #/properties/a", "no value satisfies", "1 of 3 fully enforced"):
        assert text in said.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "a back-reference in a repetition, or to a group"),
        (["--format", "kimi-k3"], "a back-reference in a repetition, or to a group"),
        (["--format", "kimi-k3", "--engine", "xgrammar"], "with LLGuidance only"),
    ],
)
def test_arguments_of_kimi_k3(options: list[str], text: str, coverage: Run) -> None:
    """xgrammar has no grammar of raw strings."""
    said = coverage(
        [{"name": "f", "inputSchema": {"properties": {"p": {"type": "string", "pattern": "(a+)\\1"}}}}], *options
    )
    assert said.code == 1 and text in " ".join(said.out.split())


def test_keywords_of_kimi_k3_are_those_of_kimi_k2() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "keywords.md").read_text(encoding="utf-8")
    known = [line.split(" | ")[:2] for line in page.splitlines() if line.startswith("|")]
    written = [line.removesuffix(" |").split(" | ") for line in keyword_table(KIMI_K3).splitlines()]
    assert len(written) > 30
    assert written[2:] == known[2:]


def test_json_from_standard_input(run: Run) -> None:
    said = run("coverage", "-", "--json", stdin=json.dumps(RELAXED["parameters"]))
    (found,) = said.json
    assert (said.code, found["tool"], found["sound"]) == (1, "schema", False)
    assert found["relaxed"][0]["pointer"] == "#/minProperties"
    assert found["enforced"] == [{"pointer": "#/type"}]


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
def test_grammars_of_custom_tools(tool: dict[str, Any], status: int, coverage: Run, *, is_nested: bool) -> None:
    """Custom grammars are read as by the server: a grammar that it refuses is reported as refused."""
    assert coverage([{"type": "custom", "custom": tool} if is_nested else {"type": "custom", **tool}]).code == status


def test_functions_of_a_namespace(coverage: Run) -> None:
    """A namespace's functions have the names that vLLM shows to the model."""
    functions = [
        {"type": "function", "name": "g", "parameters": {"properties": {"a": {}}}},
        {"type": "custom", "name": "h"},
    ]
    said = coverage([{"type": "namespace", "name": "mcp", "description": "", "tools": functions}], "--json")
    assert said.code == 0 and [entry["tool"] for entry in said.json] == ["mcp__g"]
