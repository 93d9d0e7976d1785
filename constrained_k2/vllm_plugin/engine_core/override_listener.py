"""Explains the overrides of finished turns: counts them, and logs them if the operator asks for it.

The scheduler's thread only queues a turn. One thread explains, and sleeps 99 times as long as it computed: explaining
takes at most 1 % of a core, and turns that do not fit in are dropped and counted.
"""

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from queue import Full, Queue
from typing import Any, NamedTuple

from constrained_k2.compiler.compiled import CompiledToolCalls
from constrained_k2.explain import explain_rows
from constrained_k2.explain.limits import ExplainLimits
from constrained_k2.explain.log_lines import TurnLine, override_line
from constrained_k2.explain.records import ExaminedRow, Override
from constrained_k2.parsing import parse_completion
from constrained_k2.request.spec import ToolCallSpec
from constrained_k2.vllm_plugin.byte_compiler import ENGINE_CORE, looked_up
from constrained_k2.vllm_plugin.engine_core.override_log import OverrideLog
from constrained_k2.vllm_plugin.log import warn
from constrained_k2.vllm_plugin.metrics.counters import EngineCounters, engine_counters
from constrained_k2.vllm_plugin.openings import count_calls
from constrained_k2.vllm_plugin.settings import Settings, settings_in
from constrained_k2.vocabulary.vocabulary import Vocabulary

_MAX_TURNS = 64  # that wait
_LIMITS = ExplainLimits(seconds=0.2, overrides=256, trials=32)  # of a turn: the scheduler shares the interpreter
_REST = 99  # seconds of sleep for each second of computing


class _Turn(NamedTuple):
    constraint: ToolCallSpec
    token_ids: list[int]
    rows: list[ExaminedRow]
    in_reasoning: bool


class OverrideListener:
    """Takes the examined rows of each finished turn; may be called by any thread, and returns at once.

    Args:
        settings: The operator's.
        vocabulary: The model's.
        engine: The data-parallel rank.
        counters: Where overrides are counted.
        start: Runs the loop, in a thread of its own.
        sleep: Waits some seconds.
    """

    def __init__(  # noqa: PLR0913 - the last three are for tests
        self,
        settings: Settings,
        vocabulary: Vocabulary,
        engine: int = 0,
        *,
        counters: EngineCounters = engine_counters,
        start: Callable[[Callable[[], None]], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._vocabulary = vocabulary
        self._engine = engine
        self._counters = counters
        self._log = OverrideLog(settings.overrides_log) if settings.overrides_log else None
        self._queue: Queue[_Turn] = Queue(_MAX_TURNS)
        self._start = start or _start_thread
        self._sleep = sleep
        self._is_started = False
        self._id = secrets.token_hex(6)
        self._number = 0

    def __call__(
        self,
        constraint: ToolCallSpec,
        token_ids: Sequence[int],
        rows: Sequence[ExaminedRow],
        *,
        in_reasoning: bool = False,
    ) -> None:
        """Queue a turn, if there is something to count or to log in it."""
        if not rows or (self._log is None and not any(row.is_overridden for row in rows)):
            return
        try:
            self._queue.put_nowait(_Turn(constraint, list(token_ids), list(rows), in_reasoning))
        except Full:
            self._counters.dropped_turns += 1
            return
        if not self._is_started:
            self._is_started = True
            self._start(self._run)

    def _run(self) -> None:
        while True:
            self.take_one()

    def take_one(self) -> None:
        """Wait for a turn, explain it, and rest."""
        turn = self._queue.get()
        began = time.thread_time()
        try:
            self._explain(turn)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a panic in Rust would end the thread
            self._counters.dropped_turns += 1
            warn("overrides are not explained", repr(error))
        self._sleep(_REST * (time.thread_time() - began))

    def _explain(self, turn: _Turn) -> None:
        written = [row for row in turn.rows if row.is_written_after(turn.token_ids)]
        overridden = [row for row in written if row.is_overridden]
        overrides: list[Override] = []
        if overridden:
            compiled: CompiledToolCalls = looked_up(turn.constraint, self._settings, ENGINE_CORE)
            overrides = explain_rows(
                compiled,
                self._vocabulary,
                turn.token_ids,
                overridden,
                in_reasoning=turn.in_reasoning,
                limits=_LIMITS,
            )
        for override in overrides:
            self._counters.count_override(override.place.phase, override.place.keywords)
        if self._log is not None:
            self._write(self._log, turn, len(written), overrides)

    def _write(self, log: OverrideLog, turn: _Turn, examined: int, overrides: Sequence[Override]) -> None:
        self._number += 1
        parsed = parse_completion(turn.token_ids, self._vocabulary, in_reasoning=turn.in_reasoning)
        calls: dict[str, int] = {}
        for call in parsed.tool_calls:
            calls[call.name] = calls.get(call.name, 0) + 1
        name, now = f"{self._id}-{self._number}", round(time.time(), 3)
        summary = TurnLine(now, self._engine, name, calls, len(turn.token_ids), examined)
        log.write(summary)
        for override in overrides:
            row = override.row
            markers = self._is_marker(row.wanted), self._is_marker(override.written)
            begun = count_calls(turn.token_ids[: row.position], self._vocabulary)
            values = self._settings.overrides_log_values
            log.write(override_line(override, markers, begun, summary, turn.constraint, values=values))

    def _is_marker(self, token_id: int) -> bool:
        return not self._vocabulary.ordinary_bytes(token_id)


def listener_of(vllm_config: Any, vocabulary: Vocabulary) -> OverrideListener:
    """The listener of an engine core; raises ``InvalidRequest`` if its log cannot be opened."""
    rank = vllm_config.parallel_config.data_parallel_index
    return OverrideListener(settings_in(vllm_config), vocabulary, rank)


def _start_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="constrained_k2-overrides", daemon=True).start()
