"""Log lines and counts of refused requests."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

import constrained_k2
from constrained_k2.errors import ConstrainedK2Error, FormatMismatch, InvalidRequest, SchemaTooCostly, UnsupportedSchema
from constrained_k2.vllm_plugin.api_server.refusals import BUDGETS, classified, refusals_noted
from constrained_k2.vllm_plugin.shared import log
from constrained_k2.vllm_plugin.shared.log import LineLimit, in_one_line


@pytest.mark.parametrize(
    ("error", "labels"),
    [
        (SchemaTooCostly("p", budget="depth"), ("too_costly", "depth")),
        (SchemaTooCostly("p", budget="what a client says"), ("too_costly", "other")),
        (UnsupportedSchema("p", keyword="not"), ("unsupported_schema", "not")),
        (UnsupportedSchema("p", keyword="their own"), ("unsupported_schema", "other")),
        (InvalidRequest("p", "tools[3].function.name"), ("invalid_request", "tools")),
        (InvalidRequest("p", "vllm_xargs.constrained_k2"), ("invalid_request", "vllm_xargs")),
        (InvalidRequest("p", "theirs.own"), ("invalid_request", "other")),
        (InvalidRequest("p", "..."), ("invalid_request", "other")),
        (InvalidRequest("p"), ("invalid_request", "other")),
        (FormatMismatch("p"), ("other", "other")),
    ],
)
def test_labels_are_of_fixed_sets(error: ConstrainedK2Error, labels: tuple[str, str]) -> None:
    assert classified(error) == labels


def test_every_budget_is_known() -> None:
    named = set()
    for path in Path(constrained_k2.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in {
                "SchemaTooCostly",
                "too_costly",
                "check",
            }:
                texts = [part.value for part in (*call.args, *(word.value for word in call.keywords if word.arg == "budget"))
                         if isinstance(part, ast.Constant) and isinstance(part.value, str)]  # fmt: skip
                named |= {text for text in texts[-1:] if re.fullmatch("[a-z_]+", text)}
    assert len(named) > 12
    assert named <= BUDGETS


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain, 北京 ü", "plain, 北京 ü"),
        ("a\nb\r\x1b[31m\u2028\u202e\x00\ud800", "a\\nb\\r\\x1b[31m\\u2028\\u202e\\x00\\ud800"),
        ("x" * 10_000_000, "x" * 220 + "…"),
        ("\n" * 500, "\\n" * 110 + "…"),
    ],
)
def test_a_line_is_one_line(text: str, line: str) -> None:
    assert in_one_line(text) == line


def test_lines_come_no_faster_than_they_can_be_read() -> None:
    now = 0.0
    limit = LineLimit(1.0, 3, lambda: now)
    assert [limit.take() for _ in range(10)] == [0, 0, 0, *[None] * 7]
    now = 1.5
    assert [limit.take(), limit.take()] == [7, None]
    now = 1000.0
    assert [limit.take() for _ in range(5)] == [1, 0, 0, None, None]


@refusals_noted()
def refuse(error: Exception) -> None:
    with refusals_noted():
        raise error


def noted(caplog: pytest.LogCaptureFixture, error: Any) -> list[str]:
    with pytest.raises(type(error)):
        refuse(error)
    return [record.getMessage() for record in caplog.records]


def test_a_refusal_is_said_and_counted_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_limit", LineLimit(0, 1))
    labels = {"model_name": "", "reason": "unsupported_schema", "detail": "not"}
    before = REGISTRY.get_sample_value("constrained_k2_refused_requests_total", labels) or 0
    error = UnsupportedSchema("bad\nWARNING forged " + "x" * 1000, "tools[0]", keyword="not")
    (line,) = noted(caplog, error)
    assert line.startswith("constrained_k2: refused, unsupported_schema not: tools[0]: bad\\nWARNING forged xxx")
    assert len(line) < 300
    assert len(noted(caplog, UnsupportedSchema("again", keyword="not"))) == 1  # no further line
    assert REGISTRY.get_sample_value("constrained_k2_refused_requests_total", labels) == before + 2


def test_errors_that_are_not_ours_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    assert noted(caplog, ZeroDivisionError("not ours")) == []
