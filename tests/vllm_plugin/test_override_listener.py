"""The engine core's listener: what it counts, logs and drops, and how much of a core it takes."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from prometheus_client import REGISTRY

from constrained_k2 import ToolCall, ToolCallSpec, Vocabulary, render_tool_calls
from constrained_k2.errors import InvalidRequest
from constrained_k2.explain import explain_rows
from constrained_k2.explain.records import ExaminedRow, Override, Place
from constrained_k2.vllm_plugin.engine_core import override_listener, override_log
from constrained_k2.vllm_plugin.engine_core.override_listener import OverrideListener
from constrained_k2.vllm_plugin.engine_core.override_log import OverrideLog
from constrained_k2.vllm_plugin.metrics import families
from constrained_k2.vllm_plugin.metrics.counters import EngineCounters
from constrained_k2.vllm_plugin.metrics.transport import Published
from constrained_k2.vllm_plugin.settings import Settings

BYTES = Vocabulary.of_bytes()
SPEC = ToolCallSpec.from_openai(
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"u": {"enum": ["ab"]}}}}}]}
)
IDS = render_tool_calls([ToolCall("f", 0, '{"u":"ab"}'), ToolCall("f", 1, '{"u":"ab"}')], BYTES)
LAST = len(IDS) - IDS[::-1].index(ord("a")) - 1  # of the second call's value


def row(position: int = LAST, *, is_overridden: bool = True, drafts: tuple[int, ...] = ()) -> ExaminedRow:
    return ExaminedRow(position, drafts, ord("x"), is_overridden, 0.5, 0.75, 1)


def explained(
    compiled: Any, vocabulary: Vocabulary, token_ids: Sequence[int], rows: Sequence[ExaminedRow], **_: Any
) -> list[Override]:
    """In the place of the explanation itself, which has its own tests."""
    place = Place("arguments", "f", "/u", ("enum",))
    return [Override(each, token_ids[each.position], "x\x1b", chr(token_ids[each.position]), place) for each in rows]


class Run:
    """A listener whose turns are explained in this thread, when a test says so."""

    def __init__(self, **settings: Any) -> None:
        self.counters = EngineCounters()
        self.slept: list[float] = []
        self.listener = OverrideListener(
            Settings(**settings), BYTES, 3, counters=self.counters, start=lambda _: None, sleep=self.slept.append
        )

    def turn(self, *rows: ExaminedRow) -> None:
        self.listener(SPEC, IDS, rows)
        self.listener.take_one()


@pytest.fixture(autouse=True)
def explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(override_listener, "explain_rows", explained)


def lines(path: Path) -> list[dict[str, Any]]:
    (file,) = path.parent.glob(f"{path.stem}.*")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_overrides_are_counted_by_phase_and_keyword() -> None:
    run = Run()
    not_written = row(drafts=(7,))  # after a draft that was rejected
    run.turn(row(), row(LAST - 1, is_overridden=False), not_written, row(LAST + 1))
    assert run.counters.overrides == {("arguments", "enum"): 2}
    assert run.counters.dropped_turns == 0


def test_turns_without_overrides_are_not_queued_without_a_log() -> None:
    run = Run()
    run.listener(SPEC, IDS, [row(is_overridden=False)])
    run.listener(SPEC, IDS, [])
    assert run.listener._queue.empty()


def test_labels_are_of_closed_sets() -> None:
    counters = EngineCounters()
    for keywords in (("enum",), ("enum", "type"), (), ("no\nkeyword",), ("enum",)):
        counters.count_override("arguments", keywords)
    counters.count_override("evil", ("enum",))
    assert counters.overrides == {
        ("arguments", "enum"): 2, ("arguments", "several"): 1, ("arguments", "unknown"): 2, ("unknown", "enum"): 1,
    }  # fmt: skip


def test_counts_come_to_prometheus() -> None:
    def value(name: str, **labels: str) -> float:
        found = REGISTRY.get_sample_value(f"constrained_k2_{name}", {"model_name": "kimi", "engine": "8", **labels})
        return found or 0.0

    counters, published = EngineCounters(), Published()
    for times in (1, 2):
        counters.count_override("call_id", ("undeclared name",))
        counters.dropped_turns += 1
        assert counters.age == 2 * times
        news = published.news([counters.snapshot()])
        assert news is not None
        families.record_engine(news, "kimi", 8)
        assert value("overrides_total", phase="call_id", keyword="undeclared name") == times
        assert value("dropped_explanations_total") == times


@pytest.mark.parametrize("values", [False, True])
def test_the_log(tmp_path: Path, *, values: bool) -> None:
    path = tmp_path / "new" / "overrides.jsonl"
    run = Run(overrides_log=str(path), overrides_log_values=values)
    run.turn(row(), row(LAST - 1, is_overridden=False))
    run.turn(row(is_overridden=False))
    first, override, second = lines(path)
    assert (first["kind"], first["calls"], first["tokens"], first["examined"]) == ("turn", {"f": 2}, len(IDS), 2)
    assert (second["kind"], second["examined"], second["turn"] != first["turn"]) == ("turn", 1, True)
    assert override.pop("time") == first["time"]
    assert override == {
        "kind": "override", "engine": 3, "turn": first["turn"], "call": 2, "position": LAST, "phase": "arguments",
        "tool": "f", "pointer": "/u", "keywords": ["enum"], "wanted": "x\x1b" if values else None, "written": "a",
        "probability": 0.5, "forbidden": 0.75,
    }  # fmt: skip


def test_the_log_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(override_log, "_MAX_BYTES", 1000)
    run = Run(overrides_log=str(tmp_path / "o"))
    for _ in range(50):
        run.turn(row())
    files = sorted(tmp_path.iterdir())
    assert len(files) == 4
    assert all(file.stat().st_size <= 1000 for file in files)
    assert all(json.loads(line) for file in files for line in file.read_text().splitlines())


def test_a_log_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="overrides_log"):
        OverrideLog(str(tmp_path / "file" / "log"))


def test_a_full_disk_costs_lines_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(override_log, "warn", lambda *text: warnings.append(": ".join(text)))
    run = Run(overrides_log=str(tmp_path / "o"))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    assert run.listener._log is not None
    monkeypatch.setattr(run.listener._log._handler, "shouldRollover", full)
    run.turn(row())
    assert run.counters.overrides == {("arguments", "enum"): 1}
    assert warnings and "cannot be written" in warnings[0]


def test_an_explanation_that_fails_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        """As pyo3 raises one."""

    def fail(*_: Any, **__: Any) -> list[Override]:
        raise Panic

    monkeypatch.setattr(override_listener, "explain_rows", fail)
    run = Run()
    run.turn(row())
    assert (run.counters.overrides, run.counters.dropped_turns) == ({}, 1)


def test_what_comes_too_fast_is_dropped_and_counted() -> None:
    run = Run()
    for _ in range(100):
        run.listener(SPEC, IDS, [row()])
    assert run.counters.dropped_turns == 36
    for _ in range(64):
        run.listener.take_one()
    assert run.counters.overrides == {("arguments", "enum"): 64}


def test_explaining_takes_one_percent_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*arguments: Any, **options: Any) -> list[Override]:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        return explained(*arguments, **options)

    monkeypatch.setattr(override_listener, "explain_rows", slow)
    run = Run()
    began = time.thread_time()
    run.turn(row())
    assert 99 * 0.02 <= run.slept[0] <= 99 * (time.thread_time() - began)


def test_a_thread_of_its_own_explains() -> None:
    counters, done = EngineCounters(), threading.Event()

    def sleep(_: float) -> None:
        done.set()
        time.sleep(0.001)

    others = {*threading.enumerate()}
    listener = OverrideListener(Settings(), BYTES, counters=counters, sleep=sleep)
    listener(SPEC, IDS, [row()])
    assert done.wait(30)
    assert counters.overrides == {("arguments", "enum"): 1}
    (thread,) = {*threading.enumerate()} - others
    assert thread.name == "constrained_k2-overrides"
    assert thread.daemon
    started: list[Callable[[], None]] = []
    silent = OverrideListener(Settings(), BYTES, counters=counters, start=started.append)
    assert not started
    for _ in range(2):
        silent(SPEC, IDS, [row()])
    assert len(started) == 1


def test_a_real_explanation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(override_listener, "explain_rows", explain_rows)
    run = Run(overrides_log=str(tmp_path / "o.jsonl"))
    name = IDS.index(ord("f"), IDS.index(ord(".")))
    begin = IDS.index(BYTES.format.call_begin)
    run.turn(row(), row(name), row(begin))
    assert run.counters.overrides == {
        ("arguments", "enum"): 1, ("call_id", "undeclared name"): 1, ("section", "text between markers"): 1,
    }  # fmt: skip
    _, first, second, third = lines(tmp_path / "o.jsonl")
    assert [(each["call"], each["pointer"]) for each in (first, second, third)] == [(0, None), (1, None), (2, "/u")]
    assert [(each["wanted"], each["tool"]) for each in (second, third)] == [(None, ""), (None, "f")]
    # The marker that was written may be logged, and the declared name.
    assert (first["written"], second["written"]) == (BYTES.format.marker_texts["call_begin"], "f")
