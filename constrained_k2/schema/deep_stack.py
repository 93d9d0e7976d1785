"""Running an engine's compiler, which recurses natively, where neither depth nor time can hurt the process."""

import atexit
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_STACK_BYTES = 512 << 20  # reserved, not used: pages are taken as the stack grows
_AT_ONCE = 8
_EXIT_SECONDS = 30.0
_TURN_SECONDS = 0.0005


class _ShortTurns:
    """While it is entered, who waits for the interpreter lock gets it after 0.5 ms instead of Python's 5.

    Half of a compilation is Python. Beside it whoever lets go of the lock, as each socket and each mask does, would
    wait 5 ms to get it back: the streams of a server, or the rows of a batch, one behind the other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entered = 0
        self._before = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if self._entered == 0:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(_TURN_SECONDS, self._before))
            self._entered += 1

    def anew(self) -> "_ShortTurns":
        """One that nobody has entered, for a fork, where those who had are not there to leave."""
        if self._entered:
            sys.setswitchinterval(self._before)
        return _ShortTurns()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._entered -= 1
            if self._entered == 0:
                sys.setswitchinterval(self._before)


_short_turns = _ShortTurns()


class _Task:
    """Work for a thread, and what came of it."""

    __slots__ = ("done", "error", "is_given_up", "result", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.done = threading.Event()
        self.is_given_up = False
        self.result: Any = None
        self.error: BaseException | None = None


class _DeepThreads:
    """Threads with deep stacks, started on demand and kept: a new one costs as much as a small schema."""

    def __init__(self) -> None:
        self.places = threading.BoundedSemaphore(_AT_ONCE)
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0

    def submit(self, task: _Task) -> None:
        """Have a task run; the caller holds a place, which is given back when it is done."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:  # the size holds for all threads that start while it is set
                before = threading.stack_size(_STACK_BYTES)
                try:
                    threading.Thread(target=self._serve, name="deep-stack", daemon=True).start()
                finally:
                    threading.stack_size(before)
        self._tasks.put(task)

    def _serve(self) -> None:
        while True:
            task = _current.task = self._tasks.get()
            try:
                with _short_turns:
                    task.result = task.work()
            except BaseException as error:  # noqa: BLE001 - raised again by the caller
                task.error = error
            with self._lock:
                self._idle += 1
            self.places.release()
            task.done.set()
            del task, _current.task  # so that what it holds does not live until the next one


_threads = _DeepThreads()
_current = threading.local()


def _start_anew() -> None:
    """In a fork: its parent's threads are not there."""
    global _threads, _short_turns  # noqa: PLW0603 - one of each a process
    _threads = _DeepThreads()
    _short_turns = _short_turns.anew()


os.register_at_fork(after_in_child=_start_anew)


def check_is_awaited() -> None:
    """Give up work that has taken too long: called now and then by work in :func:`on_deep_stack`.

    Raises:
        TimeoutError: Nobody waits for it any more.
    """
    task: _Task | None = getattr(_current, "task", None)
    if task is not None and task.is_given_up:
        raise TimeoutError("nobody waits for it any more")


@atexit.register
def _wait_for_the_last() -> None:
    """Let what was given up come to its end: native code that returns to an interpreter that is gone is a crash."""
    deadline = time.monotonic() + _EXIT_SECONDS
    places = _threads.places
    for _ in range(_AT_ONCE):
        if not places.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return


def on_deep_stack(work: Callable[[], T], seconds: float | None) -> T:
    """Run ``work`` in a thread with a stack that no admitted schema overflows.

    Args:
        work: Native work that lets go of the interpreter lock.
        seconds: How long to wait; None to wait for its end. What takes longer is given up at the next
            :func:`check_is_awaited`: native code cannot be interrupted, so at most eight run at once.

    Raises:
        TimeoutError: It takes longer, or too many such are still running.
    """
    threads = _threads
    if not threads.places.acquire(timeout=seconds):
        raise TimeoutError("the server is busy with schemas that take long to compile")
    task = _Task(work)
    threads.submit(task)
    if not task.done.wait(seconds):
        task.is_given_up = True
        raise TimeoutError("the schema takes too long to compile")
    if task.error is not None:
        raise task.error
    result: T = task.result
    return result
