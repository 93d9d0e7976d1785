"""``build_grammar`` and the command ``grammar``: what they refuse, how strictly they enforce, what they print."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from constrained_k2 import InvalidRequest, StrictPolicy, ToolCallSpec, UnsupportedSchema, build_grammar
from constrained_k2.cli import main
from tests.grammar.whole_turns import CASES, K3_CASES, spec_of
from tests.kit.tools import tool


@pytest.mark.parametrize(
    ("engine", "format_name"),
    [("llguidance", "ebnf"), ("llguidance", "structural-tag"), ("xgrammar", "lark"), ("x", None)],
)
def test_unknown_engines_and_formats_are_refused(engine: Any, format_name: str | None) -> None:
    with pytest.raises(InvalidRequest, match="does not support|unknown engine"):
        build_grammar(ToolCallSpec(), engine, format_name)


@pytest.mark.parametrize("engine", ["llguidance", pytest.param("xgrammar", marks=pytest.mark.slow)])
def test_a_schema_without_a_grammar_is_refused_by_name_if_strict(engine: Any, caplog: Any) -> None:
    body = {"tools": [tool("f"), tool("g", {"not": {}})]}
    assert build_grammar(ToolCallSpec.from_openai(body), engine)
    assert "'g'].function.parameters: '# (no value satisfies" in caplog.text
    body = {"tools": [tool("f"), tool("g", {"not": {}}, strict=True)]}
    with pytest.raises(UnsupportedSchema, match="'g'.*no value satisfies"):
        build_grammar(ToolCallSpec.from_openai(body), engine)
    assert build_grammar(ToolCallSpec.from_openai(body | {"tool_choice": "none"}), engine)


@pytest.mark.parametrize("engine", ["llguidance", pytest.param("xgrammar", marks=pytest.mark.slow)])
def test_the_policy_decides_how_strictly_a_schema_is_enforced(engine: Any) -> None:
    body = {"tools": [tool("f", {"type": "object", "properties": {"q": {"const": "kept"}}}, strict=False)]}
    spec = ToolCallSpec.from_openai(body)
    assert "kept" in build_grammar(spec, engine)
    assert "kept" not in build_grammar(spec, engine, policy=StrictPolicy(strict_false="json_object"))


@pytest.mark.parametrize("engine", ["llguidance", pytest.param("xgrammar", marks=pytest.mark.slow)])
def test_the_spec_and_the_command_say_whether_undeclared_keys_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: Any
) -> None:
    body = {"tools": [tool("f", {"type": "object", "properties": {"q": {}}})]}
    (tmp_path / "request.json").write_text(json.dumps(body))
    texts = {}
    for setting in ("allow", "forbid"):
        texts[setting] = build_grammar(ToolCallSpec.from_openai(body | {"undeclared_keys": setting}), engine)
        arguments = [str(tmp_path / "request.json"), "--engine", engine, "--undeclared-keys", setting]
        assert main(["grammar", *arguments]) == 0
        assert capsys.readouterr().out.rstrip("\n") == texts[setting].rstrip("\n")
    assert len(texts["forbid"]) < len(texts["allow"])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[0]
    assert main(["grammar", str(case / "request.json")]) == 0
    assert capsys.readouterr().out == (case / "grammar.lark").read_text(encoding="utf-8")
    assert main(["grammar", str(case / "request.json"), "--engine", "xgrammar", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["engine"], printed["format"]) == ("xgrammar", "structural-tag")
    assert json.loads(printed["grammar"])["type"] == "structural_tag"
    assert main(["grammar", str(tmp_path / "none")]) == 2
    assert main(["grammar", str(case / "request.json"), "--format", "ebnf"]) == 2
    broken = tmp_path / "request.json"
    broken.write_text(json.dumps({"tools": [tool("g", {"not": {}}, strict=True)]}))
    assert main(["grammar", str(broken)]) == 1
    assert "tools[name='g']" in capsys.readouterr().err


def test_the_command_writes_kimi_k3s_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    k3 = ["--wire-format", "kimi-k3"]
    for case in K3_CASES:
        assert main(["grammar", str(case / "request.json"), *k3]) == 0
        assert capsys.readouterr().out == (case / "grammar.lark").read_text(encoding="utf-8")
    request = str(CASES[0] / "request.json")
    assert main(["grammar", request, *k3]) == 0
    without = capsys.readouterr().out.removesuffix("TEXT: /(?s:.)+/\n")
    assert main(["grammar", request, *k3, "--in-reasoning"]) == 0
    reasoning = 'TEXT? <|close|> "think" <|sep|> <|open|> "response" <|sep|>'
    inside = without.replace("start: ", f"start: {reasoning} ", 1)
    assert capsys.readouterr().out == f"{inside}TEXT: /(?s:.)+/\n"
    later = tmp_path / "later.json"
    later.write_text(json.dumps({"tools": [tool("g", {})], "first_index": 4, "parallel_tool_calls": False}))
    assert main(["grammar", str(later), *k3]) == 0
    assert 'index=\\"1\\"' in capsys.readouterr().out
    for format_name in ("structural-tag", "ebnf"):
        assert main(["grammar", request, *k3, "--engine", "xgrammar", "--format", format_name]) == 2
        assert "Kimi K3's arguments. Use 'llguidance'" in capsys.readouterr().err


def test_the_command_says_what_the_formats_cannot_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["grammar", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "example: constrained-k2 grammar" in printed
    for said in (
        "any digits as the index",
        "only in the schema's order",
        "ordinary tokens",
        "drops many keywords",
        "hundred calls",
    ):
        assert said in printed


def test_the_command_reads_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((CASES[0] / "request.json").read_bytes())))
    assert main(["grammar", "-", "--in-reasoning"]) == 0
    assert capsys.readouterr().out == build_grammar(spec_of(CASES[0]), in_reasoning=True)
