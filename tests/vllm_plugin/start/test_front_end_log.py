"""The lines of the log that say which requests are constrained, at start and while a server runs, and what was tested."""

from collections.abc import Callable
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import version
from vllm.platforms import current_platform

from constrained_k2.vllm_plugin.engine_core.adoption_log import AdoptionLog, start_timer
from constrained_k2.vllm_plugin.shared.counters import EngineCounters
from constrained_k2.vllm_plugin.start.front_end import report_front_end, report_version
from constrained_k2.vllm_plugin.start.versions import VERSIONS


def report(caplog: pytest.LogCaptureFixture, ours: Any, **flags: Any) -> None:
    caplog.set_level("INFO", "vllm.constrained_k2")
    config = SimpleNamespace(additional_config={"constrained_k2": ours}, logits_processors=None)
    report_front_end(SimpleNamespace(**flags), config)


@pytest.mark.parametrize(
    ("parser", "level", "ours", "said"),
    [
        ("kimi_k2", "auto", {"route": "structured_output"}, "Add --tool-strict-level parameter"),
        ("kimi_k2", "function", {"route": "structured_output"}, "leaves its arguments free"),
        ("kimi_k2", "parameter", {"route": "structured_output"}, ""),
        ("kimi_k2", "auto", {"route": "structured_output", "adopt": "prompt"}, ""),
        ("kimi_k2", "parameter", {"route": "structured_output", "adopt": "off"}, "Leave out adopt"),
        ("kimi_k2", "parameter", {}, "no request is constrained"),
        ("kimi_k3", "parameter", {"route": "structured_output"}, "Add the setting adopt: 'prompt', or use"),
        ("kimi_k3", "auto", {"route": "structured_output", "adopt": "prompt"}, ""),
        ("kimi_k2_constrained", "auto", {"route": "structured_output"}, ""),
        (None, "auto", {"route": "structured_output"}, ""),
    ],
)
def test_the_log_says_who_is_constrained(
    caplog: pytest.LogCaptureFixture, parser: str | None, level: str, ours: Any, said: str
) -> None:
    report(caplog, ours, tool_call_parser=parser, tool_strict_level=level)
    (record,) = caplog.records
    expected = f"front end Python, tool parser {parser or 'none'}, route {ours.get('route', 'none')}"
    assert expected in record.getMessage()
    assert said in record.getMessage() and (record.levelname == "WARNING") == bool(said)


@pytest.mark.parametrize(("command", "shown"), [("serve", "Rust"), ("launch", "Python")])
def test_only_vllm_serve_starts_the_rust_front_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, command: str, shown: str
) -> None:
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    flags = {"subparser": command, "tool_call_parser": "kimi_k2", "tool_strict_level": "parameter"}
    report(caplog, {"route": "structured_output"}, **flags)
    assert f"front end {shown}, " in caplog.text


def test_the_engine_core_logs_its_counts_once_a_minute(
    counters: EngineCounters, caplog: pytest.LogCaptureFixture
) -> None:
    """The first change shows at once, those of the next minute in one line at its end, and what stays the same never."""
    caplog.set_level("INFO", "vllm.constrained_k2")
    now = 100.0
    due: list[tuple[float, Callable[[], None]]] = []
    log = AdoptionLog(60.0, start=lambda seconds, function: due.append((seconds, function)), clock=lambda: now)
    log.add_request(is_constrained=False)
    assert not caplog.records and not due
    counters.adopted["tag"] += 1
    log.add_request(is_constrained=True)
    now += 20
    for reason in ("format", "tools", "tools"):
        counters.left[reason] += 1
        log.add_request(is_constrained=False)
    counters.unconstrained_calls += 4
    log.report()
    ((seconds, function),) = due
    assert seconds == 40
    now += seconds
    function()
    now += 20
    log.add_request(is_constrained=False)
    log.report()
    first, second = (record.getMessage() for record in caplog.records)
    said = "requests constrained; of other front ends: adopted tag 1; left to vLLM"
    assert first.endswith(f"1 of 2 {said} 0; calls begun without a constraint 0")
    assert second.endswith(f"1 of 5 {said} format 1, tools 2; calls begun without a constraint 4")
    counters.adopted["xargs"] += 1
    log.report()
    assert len(due) == 2  # twenty seconds after the last line


def test_a_line_that_is_due_is_logged_by_a_thread(counters: EngineCounters, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "vllm.constrained_k2")
    log = AdoptionLog(0.2, start_timer)
    for _ in range(2):
        counters.adopted["tag"] += 1
        log.report()
    assert len(caplog.records) == 1
    deadline = monotonic() + 30
    while len(caplog.records) < 2:
        assert monotonic() < deadline
        sleep(0.02)
    assert "adopted tag 2" in caplog.text


@pytest.mark.parametrize(
    ("number", "is_cpu", "said"),
    [
        ("0.32.0", True, "vLLM 0.32.0 on a CPU: tested in CI"),
        ("0.32.0+cpu", True, "vLLM 0.32.0+cpu on a CPU: tested in CI"),
        ("0.32.7", True, "vLLM 0.32.7 on a CPU: not run. vLLM 0.32.0 on a CPU: tested in CI"),
        ("0.33.0", True, "vLLM 0.33.0 on a CPU: tested by hand, on its Python sources"),
        ("0.33.0", False, "vLLM 0.33.0 on a GPU: not run. vLLM 0.33.0 on a CPU: tested by hand"),
        ("0.99.0", True, "vLLM 0.99.0 on a CPU: not run. vLLM 0.33.0 on a CPU: tested by hand"),
    ],
)
def test_the_log_says_what_was_tested(
    number: str, is_cpu: bool, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(version, "__version__", number)
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda _: is_cpu)
    caplog.set_level("INFO", "vllm.constrained_k2")
    report_version()
    (record,) = caplog.records
    assert said in record.getMessage()
    assert (record.levelname == "WARNING") == ("not run" in said)


def test_each_minor_version_is_listed_once() -> None:
    minors = [row.minor for row in VERSIONS]
    assert len(set(minors)) == len(minors)
    assert all(row.on_cpu or row.on_gpu for row in VERSIONS)
