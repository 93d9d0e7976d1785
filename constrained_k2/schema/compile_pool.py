"""Runs an engine's compiler, which recurses in native code, so that neither depth nor time can harm the process."""

import atexit
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

_STACK_BYTES = 512 << 20  # reserved, not used: the kernel adds pages as the stack grows
_MAX_RUNNING = 8
_EXIT_SECONDS = 30.0
_SWITCH_SECONDS = 0.0005
_TURN_SECONDS = 0.0003
_BREAK_SECONDS = 1e-6  # the kernel makes some 60 us of it
_PATIENCE = 4.0  # wall time over CPU time: work that waits for a busy machine's CPUs is not slow


class PoolBusy(TimeoutError):
    """No slot became free in time: this says nothing about the work that waited for one."""


@dataclass(eq=False, slots=True)
class _Task:
    work: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    is_given_up: bool = False
    result: Any = None
    error: BaseException | None = None
    clock: int | None = None  # the CPU clock of its thread, once it has begun
    begun: float = 0.0  # by that clock

    def begin(self) -> None:
        clock = time.pthread_getcpuclockid(threading.get_ident())
        self.begun = time.clock_gettime(clock)
        self.clock = clock

    def cpu_seconds(self) -> float:
        return 0.0 if self.clock is None else time.clock_gettime(self.clock) - self.begun

    def ends_within(self, seconds: float | None) -> bool:
        """Wait for it: for so much CPU time of its thread, and a multiple of it by the clock."""
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

    While one works, threads that wait for the interpreter lock get it after 0.5 ms instead of Python's 5: half of a
    compilation is Python, and each socket and each mask releases the lock and has to get it back.
    """

    def __init__(self) -> None:
        self.slots = threading.BoundedSemaphore(_MAX_RUNNING)
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self.running = 0
        self.switch_interval = sys.getswitchinterval()

    @contextmanager
    def in_short_turns(self) -> Iterator[None]:
        with self._lock:
            if not self.running:
                self.switch_interval = sys.getswitchinterval()
                sys.setswitchinterval(min(_SWITCH_SECONDS, self.switch_interval))
            self.running += 1
        try:
            yield
        finally:
            with self._lock:
                self.running -= 1
                if not self.running:
                    sys.setswitchinterval(self.switch_interval)

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
            task = _current.task = self._tasks.get()
            with self.in_short_turns():
                task.begin()
                try:
                    task.result = task.work()
                except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                    task.error = error
            with self._lock:
                self._idle += 1
            self.slots.release()
            task.done.set()
            del task, _current.task  # frees what the task holds before the next one arrives


_pool = _Pool()
_current = threading.local()


def _after_fork() -> None:
    global _pool  # noqa: PLW0603 - one per process; a fork lacks the threads of its parent
    if _pool.running:
        sys.setswitchinterval(_pool.switch_interval)
    _pool = _Pool()


os.register_at_fork(after_in_child=_after_fork)


def in_short_turns() -> AbstractContextManager[None]:
    """A context in which threads that wait for the interpreter lock get it after 0.5 ms, as while a schema compiles."""
    return _pool.in_short_turns()


def in_turns(work: Callable[..., T], *arguments: Any) -> T:
    """Run ``work`` in this thread, with a break after every 0.3 ms in which it calls :func:`give_way`.

    Short turns alone are not enough: a thread that waits for the interpreter lock gets it after a turn only if it has a
    CPU then. On a busy machine the kernel leaves the CPU to the thread that works, for up to 5 ms, unless that sleeps.
    """
    _current.turn_began = time.monotonic()
    try:
        return work(*arguments)
    finally:
        _current.turn_began = None


def give_way() -> None:
    """Let other threads run now and then, in work that :func:`in_turns` runs; elsewhere do nothing."""
    began: float | None = getattr(_current, "turn_began", None)
    if began is not None and time.monotonic() - began > _TURN_SECONDS:
        time.sleep(_BREAK_SECONDS)
        _current.turn_began = time.monotonic()


def check_deadline() -> None:
    """Raise ``TimeoutError`` in work that :func:`run_bounded` has given up; long work calls this now and then."""
    task: _Task | None = getattr(_current, "task", None)
    if task is not None and task.is_given_up:
        raise TimeoutError("the caller no longer waits for this schema")


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

    Native code cannot be interrupted: work that takes longer than ``seconds`` stops at its next :func:`check_deadline`,
    and holds one of eight slots until then. The CPU time of the work counts, so that a busy machine does not refuse
    what an idle one takes; by the clock, it may take four times as long.

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
