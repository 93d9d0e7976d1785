"""The verifier's benchmark: options reach the suite, its report is read, and a suite that writes none is an error."""

from pathlib import Path

import pytest

from benchmarks.vendor_verifier import run_suite

_CONFTEST = """
import json
import os

OPTIONS = ("--base-url", "--api-key", "--smoke-model", "--think-mode", "--tool-json-report", "--max-cases")

def pytest_addoption(parser):
    for option in OPTIONS:
        parser.addoption(option)

def pytest_sessionfinish(session):
    case = {"suite": "S", "line": 1, "mode": session.config.getoption("base_url"), "message": ""}
    message = "def f():\\nE   AssertionError: not valid\\nE   more"
    inherited = {name for name in os.environ if name.startswith("PYTEST_XDIST")}
    failed = case | {"status": "failed", "message": message, "line": session.config.getoption("max_cases")}
    if not inherited:
        report = {"results": [case | {"status": "passed"}, failed]}
        open(session.config.getoption("tool_json_report"), "w").write(json.dumps(report))
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    folder = tmp_path / "suite"
    tests = folder / "tests" / "tool_call_json_schema"
    tests.mkdir(parents=True)
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tests / "conftest.py").write_text(_CONFTEST)
    (tests / "test_it.py").write_text("def test_it(): pass\n")
    return folder


def test_the_report_is_read(suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    result = run_suite("http://x", suite, tmp_path / "report.json", ["--max-cases=7"])
    assert (result.passed, result.total) == (1, 2)
    assert result.failed == ["S:7 [http://x/v1] E   AssertionError: not valid"]


def test_a_suite_without_a_report_is_an_error(suite: Path, tmp_path: Path) -> None:
    (suite / "tests" / "tool_call_json_schema" / "conftest.py").write_text("import gone\n")
    with pytest.raises(RuntimeError, match="gone"):
        run_suite("http://x", suite, tmp_path / "report.json")
