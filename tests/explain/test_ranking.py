"""The log of overrides: what a line may hold, and how lines rank."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from constrained_k2 import ToolCallSpec
from constrained_k2.errors import InvalidRequest
from constrained_k2.explain.advice import ADVICE, advice
from constrained_k2.explain.keywords import OTHER_CAUSES
from constrained_k2.explain.log_lines import OverrideLine, TurnLine, override_line
from constrained_k2.explain.ranking import print_ranking, rank
from constrained_k2.explain.records import ExaminedRow, Override, Place
from constrained_k2.schema.keywords import KEYWORDS

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get-weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "units": {"enum": ["celsius", "fahrenheit", 7]},
                    "city": {"type": "string", "pattern": "^[A-Z]"},
                    "days": {"type": "array", "items": {"type": "object", "properties": {"celsius": {}}}},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "f"}},
]
SPEC = ToolCallSpec.from_openai({"tools": TOOLS})
TURN = TurnLine(1.0, 0, "t", {"get-weather": 1}, 40, 40)


def override(wanted: str, written: str, pointer: str | None, *keywords: str, **place: Any) -> Override:
    where = {"phase": "arguments", "tool": "get-weather", "pointer": pointer, "keywords": keywords} | place
    return Override(ExaminedRow(5, (), 1, True, 0.75, 0.875, 12), 2, wanted, written, Place(**where))


def line(each: Override, *, values: bool = False, markers: tuple[bool, bool] = (False, False)) -> OverrideLine:
    return override_line(each, markers, 1, TURN, SPEC, values=values)


def texts(found: OverrideLine) -> tuple[str | None, str | None, str | None]:
    return found.wanted, found.written, found.pointer


def test_a_line_holds_what_the_tools_declare_and_nothing_else() -> None:
    secret = override('"kel', '"cel', "/units", "enum")
    assert texts(line(secret)) == (None, '"cel', "/units")
    assert texts(line(secret, values=True)) == ('"kel', '"cel', "/units")
    assert texts(line(override("7", "f", "/units", "enum"))) == ("7", "f", "/units")
    # The same texts at a place where they are values: they are the client's.
    assert texts(line(override("cel", "A", "/city", "pattern"))) == (None, None, "/city")
    assert texts(line(override('":', '", "', "/city", "pattern"))) == ('":', '", "', "/city")
    assert texts(line(override('"town', '"city', "", "unknown key"))) == (None, '"city', "")
    assert texts(line(override("get-w", "x", None, "undeclared name", phase="call_id", tool=""))) == (
        "get-w",
        None,
        None,
    )
    assert texts(line(override("<|im_end|>", "secret", "/city", "required"), markers=(True, False)))[0] == "<|im_end|>"
    deep = override("x", "y", "/days/12/a~1secret/celsius", "enum")
    assert line(deep).pointer == "/days/*/*/celsius"
    assert line(deep, values=True).pointer == "/days/12/a~1secret/celsius"


def test_a_line_of_an_answer_with_a_form() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"properties": {"k": {"const": "yes"}}}}}
    spec = ToolCallSpec.from_openai({"tools": TOOLS, "response_format": form})
    each = override("no", "yes", "/k", "const", phase="answer", tool="")
    found = override_line(each, (False, False), 0, TURN, spec, values=False)
    assert texts(found) == (None, "yes", "/k")


def log(path: Path, lines: list[TurnLine | OverrideLine | str]) -> Path:
    texts = (each if isinstance(each, str) else json.dumps(msgspec.to_builtins(each)) for each in lines)
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def logged(turn: str, call: int, *place: str | None, wanted: str | None = "a", tool: str = "f") -> OverrideLine:
    pointer, *keywords = place
    rest = (tuple(filter(None, keywords)), wanted, "b", 0.5, 0.75)
    return OverrideLine(1.0, 0, turn, call, 3, "arguments", tool, pointer, *rest)


def test_places_rank_by_the_calls_that_they_override(tmp_path: Path) -> None:
    turns = [TurnLine(1.0, 0, f"t{number}", {"f": 2}, 100, 25) for number in range(10)]
    rare = [logged("t1", 1, "/rare", "type") for _ in range(50)]  # one call, many tokens
    often = [logged(f"t{number}", call, f"/l/{number}/x", "enum") for number in range(3) for call in (1, 2, 2)]
    found = rank([log(tmp_path / "a", [*turns, *rare]), log(tmp_path / "b", ["{", "[]", *often])])
    assert [(each.pointer, each.calls, each.overrides) for each in found.places] == [("/l/*/x", 6, 9), ("/rare", 1, 50)]
    # A quarter of all tokens was examined: 6 of 20 calls seen are all of them, estimated, and 1 stands for 4.
    assert [each.share for each in found.places] == [1.0, 0.2]
    assert (found.turns, found.tokens, found.examined, found.bad_lines) == (10, 1000, 250, 2)
    assert found.places[0].changes == {("a", "b"): 9}
    assert found.places[0].forbidden == pytest.approx(0.75)


def test_many_places_and_texts_take_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("constrained_k2.explain.ranking._MAX_PLACES", 10)
    many = [logged("t", 1, f"/k{number}x", "type") for number in range(50)]
    many += [logged("t", 1, "/k0x", "type", wanted=str(number)) for number in range(500)]
    found = rank([log(tmp_path / "a", [*many])])
    assert len(found.places) == 11
    assert sum(each.overrides for each in found.places) == 550
    assert max(len(each.changes) for each in found.places) == 200


def test_what_is_printed_steers_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[31m\u202e[bold]x\n"
    path = log(tmp_path / "a", [TURN, logged("t", 1, f"/{evil}", "enum", wanted=evil, tool=evil)])
    print_ranking([path])
    printed = capsys.readouterr().out
    assert "\\x1b[31m\\u202e[bold]x\\n" in printed
    assert "\x1b" not in printed and "\u202e" not in printed
    assert "Add the wanted value to the enum" in " ".join(printed.split())


def test_the_first_place_is_printed_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    units = [override_line(override('"deg', '"cel', "/units", "enum"), (False, False), 1, TURN, SPEC, values=False)]
    log(tmp_path / "a", [TURN, *units])
    print_ranking([tmp_path / "a"])
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.split()[:2] == ["tool", "place"]
    assert second.split()[:5] == ["get-weather", "/units", "enum", "1", "100%"]
    assert '? → “"cel” (1 of 1)' in second


def test_a_log_that_is_missing_or_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidRequest, match="overrides_log"):
        rank([tmp_path / "none"])
    (tmp_path / "empty").write_text("")
    print_ranking([tmp_path / "empty"])
    assert "No override in the log" in capsys.readouterr().out


def test_each_keyword_and_cause_has_advice() -> None:
    assert set(OTHER_CAUSES) | set(KEYWORDS) == ADVICE.keys()
    assert advice(()) not in ADVICE.values()
    assert advice(("nope", "pattern")) == ADVICE["format"]
