"""Every row of the changelog's table of old names is true: the old name works, and says what the new one is."""

import importlib
import importlib.util
import logging
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import constrained_k2
from constrained_k2 import InvalidRequest, Repair, StrictPolicy, ToolCall, Vocabulary, parse_completion
from constrained_k2.cli import parse, render
from constrained_k2.parsing import events
from constrained_k2.prompts import Fault
from constrained_k2.vllm_plugin import settings

ROOT = Path(__file__).parents[1]
SECTION = (ROOT / "CHANGELOG.md").read_text("utf-8").partition("\n## 0.2.0\n")[2].partition("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in SECTION.splitlines() if line.startswith("| ")]
NAMES = re.compile("`([^`]+)`")


def read(key: str, value: Any) -> settings.Settings:
    return settings.settings_in(SimpleNamespace(additional_config={"constrained_k2": {key: value}}))


def setting(old: str, new: str, caplog: pytest.LogCaptureFixture) -> None:
    settings.report_old_name.cache_clear()
    assert getattr(read(old, 3), new) == 3
    assert f"{old!r} is now {new!r}" in caplog.text


def route(old: str, new: str, caplog: pytest.LogCaptureFixture) -> None:
    settings.report_old_name.cache_clear()
    assert read("route", old).route == new
    assert f"{old!r} is now {new!r}" in caplog.text


def bound(old: str, new: str, _: object) -> None:
    with pytest.warns(FutureWarning, match=f"{old!r} is now {new!r}"):
        assert getattr(read("strict", {old: "best_effort"}).strict, new) == "best_effort"
    with pytest.warns(FutureWarning, match=f"{old!r} is now {new!r}"):
        policy = StrictPolicy(**{old: "best_effort"})  # type: ignore[arg-type]
    with pytest.warns(DeprecationWarning, match=f"now {new!r}"):
        assert getattr(policy, old) == getattr(policy, new) == "best_effort"


def level(old: str, new: str, _: object) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert read("strict", {"max": old}).strict.max == new
    assert [str(warning.message) for warning in caught] == [f"strict: {old!r} is now {new!r}"] * (old != new)


def request_field(old: str, new: str, _: object) -> None:  # it is read in vllm_plugin/test_finish_budget.py
    assert {row.old_name: row.name for row in settings.REQUEST_FIELDS if row.old_name} == {old: new}


def attribute_of(*values: Any) -> Callable[[str, str, object], None]:
    def check(old: str, new: str, _: object) -> None:
        for value in values:
            with pytest.warns(DeprecationWarning, match=f"now {new[1:]!r}") as caught:
                assert getattr(value, old[1:]) == getattr(value, new[1:])
            assert [warning.filename for warning in caught] == [__file__]

    return check


def parse_json(old: str, new: str, _: object) -> None:
    vocabulary = Vocabulary.of_bytes()
    markers = vocabulary.format
    ids = [markers.call_begin, *b"f:0", markers.argument_begin, *b"{}", markers.call_end]
    (call,) = parse.examine(parse_completion(ids, vocabulary, level="tolerant"), None)["tool_calls"]
    assert call[old] == call[new] == ("no_section", "bare_id")


def render_json(old: str, new: str, _: object) -> None:
    for found in (REPAIR, FAULT):
        shown = render._to_json(found)
        assert shown[old] == shown[new] == found.location


def module(old: str, new: str, _: object) -> None:
    sys.modules.pop(f"constrained_k2.{old}", None)
    with pytest.warns(DeprecationWarning, match=f"^constrained_k2.{old} is now constrained_k2.{new}$"):
        assert importlib.import_module(f"constrained_k2.{old}") is importlib.import_module(f"constrained_k2.{new}")


def event(old: str, new: str, _: object) -> None:
    package = importlib.import_module("constrained_k2.parsing")
    with pytest.warns(DeprecationWarning, match=f"{old} is now constrained_k2.parsing.events.{new}"):
        assert getattr(package, old) is getattr(events, new)


def command(old: str, new: str, _: object) -> None:
    """The old script is gone and the new module is there; both may be abbreviated as in the line before them."""
    new = new.removeprefix("python -m ")
    assert not (ROOT / "scripts" / Path(old).name).exists()
    found = importlib.util.find_spec(f"benchmarks{new}" if new.startswith(".") else new)
    assert found is not None and (found.name == "scripts.train_demo_model" or found.submodule_search_locations)


REPAIR, FAULT = Repair("messages[0]", "role", "a", "b"), Fault("turns", "the whole", "x")
CHECKS: dict[str, Callable[[str, str, Any], None]] = {
    "setting": setting,
    "setting `route`": route,
    "setting `strict`": bound,
    "levels of `strict`": level,
    "request field": request_field,
    "attribute of errors, `Repair` and `Fault`": attribute_of(InvalidRequest("x", "body"), REPAIR, FAULT),
    "attribute of `ToolCall`": attribute_of(ToolCall("f", 0, "{}", ("blanks",))),
    "`parse --json`": parse_json,
    "`render --json`": render_json,
    "modules in `constrained_k2`": module,
    "events in `constrained_k2.parsing`": event,
    "benchmarks": command,
    "training": command,
    "random test model": command,
}


@pytest.mark.parametrize(("what", "old", "new"), ROWS[1:], ids=[f"{what} {old}"[:60] for what, old, _ in ROWS[1:]])
def test_a_row(what: str, old: str, new: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "vllm.constrained_k2")
    names = [name for name in NAMES.findall(new) if not name.startswith("parsing.")]
    for old_name, new_name in zip(NAMES.findall(old), names, strict=True):
        CHECKS[what](old_name, new_name, caplog)


def test_the_table_has_every_moved_module() -> None:
    (row,) = [row for row in ROWS if row[0].startswith("modules")]
    assert dict(zip(NAMES.findall(row[1]), NAMES.findall(row[2]), strict=True)) == constrained_k2._MOVED


def test_modules_inside_moved_packages_are_loaded_once() -> None:
    with pytest.warns(DeprecationWarning, match="is now constrained_k2.prompts.prompt"):
        old = importlib.import_module("constrained_k2.rendering.prompt")
    assert old is importlib.import_module("constrained_k2.prompts.prompt")
    with pytest.raises(ModuleNotFoundError, match=r"constrained_k2\.prompts\.nope"):
        importlib.import_module("constrained_k2.rendering.nope")


@pytest.mark.parametrize("place", ["vocabulary.Vocabulary", "compiler.Compiler", "parsing.ContentDelta"])
@pytest.mark.filterwarnings("ignore:constrained_k2.parsing")
def test_names_whose_module_became_a_folder(place: str) -> None:
    module, _, name = place.rpartition(".")
    assert getattr(importlib.import_module(f"constrained_k2.{module}"), name).__name__ == name
