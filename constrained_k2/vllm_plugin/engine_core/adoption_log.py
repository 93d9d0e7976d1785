"""Logs, in the engine core, how many requests are constrained.

vLLM's Rust front end shows no metrics of plugins.
"""

from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Timer

from constrained_k2.vllm_plugin.shared.counters import engine_counters
from constrained_k2.vllm_plugin.shared.log import logger


class AdoptionLog:
    """Logs the counts of other front ends' requests, if they have changed, at most once in ``seconds``."""

    def __init__(self, seconds: float = 60.0, timer: Callable[..., Timer] = Timer) -> None:
        self._seconds = seconds
        self._timer = timer
        self._requests = self._constrained = 0
        self._logged = _counts()
        self._is_waiting = False  # the last line is not that old yet
        self._lock = Lock()

    def add_request(self, *, is_constrained: bool) -> None:
        """Count a request that has arrived."""
        self._requests += 1
        self._constrained += is_constrained
        self.report()

    def report(self) -> None:
        """Log the counts if they have changed: now, or once the time since the last line is over."""
        if self._is_waiting or _counts() == self._logged:
            return
        with self._lock:
            if self._is_waiting:
                return
            self._log()
            with suppress(RuntimeError):  # no more threads: the next change is logged at once
                timer = self._timer(self._seconds, self._go_on)
                timer.daemon = True
                timer.start()
                self._is_waiting = True

    def _go_on(self) -> None:
        self._is_waiting = False
        self.report()

    def _log(self) -> None:
        adopted, left, calls = self._logged = _counts()
        logger.info(
            "constrained_k2: %d of %d requests constrained; of other front ends: adopted %s; left to vLLM %s; "
            "calls begun without a constraint %d",
            self._constrained,
            self._requests,
            _listed(engine_counters.adopted) if adopted else 0,
            _listed(engine_counters.left) if left else 0,
            calls,
        )


def _counts() -> tuple[int, int, int]:
    counters = engine_counters
    return sum(counters.adopted.values()), sum(counters.left.values()), counters.unconstrained_calls


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)
