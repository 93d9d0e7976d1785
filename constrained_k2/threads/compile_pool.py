"""Runs an engine's native compiler in threads with deep stacks and a time limit."""

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from constrained_k2.threads.interruptible import switch_interval, until_given_up

T = TypeVar("T")

_STACK_BYTES = 512 << 20  # reserved, not used: the kernel adds pages as the stack grows
_MAX_RUNNING = 8
_EXIT_SECONDS = 30.0
_PATIENCE = 4.0  # max ratio of wall time to CPU time: work that waits for a busy machine's CPUs is not slow


class PoolBusy(TimeoutError):
    """No slot became free in time: this says nothing about the work that waited for one."""


@dataclass(eq=False, slots=True)
class _Task:
    work: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    is_given_up: bool = False
    result: Any = None
    error: BaseException | None = None
    clock: int | None = None  # the CPU clock of the thread that runs the task; None before it has begun
    begun: float = 0.0  # the start time by that clock

    def begin(self) -> None:
        clock = time.pthread_getcpuclockid(threading.get_ident())
        self.begun = time.clock_gettime(clock)
        self.clock = clock

    def cpu_seconds(self) -> float:
        return 0.0 if self.clock is None else time.clock_gettime(self.clock) - self.begun

    def ends_within(self, seconds: float | None) -> bool:
        """Wait for at most ``seconds`` of the thread's CPU time, or four times that in wall time; True if it ended."""
        if seconds is None:
            return self.done.wait()
        deadline, left = time.monotonic() + _PATIENCE * seconds, seconds
        while left > 0:
            if self.done.wait(left):
                return True
            left = min(seconds - self.cpu_seconds(), deadline - time.monotonic())
        return False


class _Pool:
    """Threads with deep stacks, started on demand and reused: starting one takes as long as a small schema.

    While one works, the switch interval is short: half of a compilation is Python.
    """

    def __init__(self) -> None:
        self.slots = threading.BoundedSemaphore(_MAX_RUNNING)
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0

    def submit(self, task: _Task) -> None:
        """Run a task. The caller has acquired a slot, which the thread releases."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:  # the stack size applies to all threads that start while it is set
                before = threading.stack_size(_STACK_BYTES)
                try:
                    threading.Thread(target=self._serve, name="deep-stack", daemon=True).start()
                finally:
                    threading.stack_size(before)
        self._tasks.put(task)

    def _serve(self) -> None:
        while True:
            task = self._tasks.get()
            with switch_interval.short(), until_given_up(lambda: task.is_given_up):  # noqa: B023 - ends within this pass
                task.begin()
                try:
                    task.result = task.work()
                except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                    task.error = error
            with self._lock:
                self._idle += 1
            self.slots.release()
            task.done.set()
            del task  # frees what the task holds before the next one arrives


_pool = _Pool()


def _after_fork() -> None:
    global _pool  # noqa: PLW0603 - one per process; a fork lacks the threads of its parent
    switch_interval.after_fork()
    _pool = _Pool()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _wait_for_running() -> None:
    """Let work that was given up end first: native code that returns to a finished interpreter crashes."""
    deadline = time.monotonic() + _EXIT_SECONDS
    slots = _pool.slots
    for _ in range(_MAX_RUNNING):
        if not slots.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return


def run_bounded(work: Callable[[], T], seconds: float | None) -> T:
    """Run ``work`` in a thread with a stack that no admitted schema overflows.

    Native code cannot be interrupted: work that takes longer than ``seconds`` stops at its next ``check_deadline``,
    and occupies one of eight slots until then. The limit is on the work's CPU time, so that a busy machine does not
    refuse what an idle one accepts; in wall time, the work may take four times as long.

    Raises:
        TimeoutError: It takes longer.
        PoolBusy: No slot became free in time.
    """
    pool, task = _pool, _Task(work)
    if not pool.slots.acquire(timeout=seconds):
        raise PoolBusy("the server is busy with schemas that take long to compile")
    pool.submit(task)
    if not task.ends_within(seconds):
        task.is_given_up = True
        raise TimeoutError("the schema takes too long to compile")
    if task.error is not None:
        raise task.error
    result: T = task.result
    return result
