"""Lets long Python work yield the GIL to other threads, and stop if its caller no longer waits."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

_SWITCH_SECONDS = 0.0005
_SLICE_SECONDS = 0.0003
_BREAK_SECONDS = 1e-6  # the kernel sleeps some 60 us

_current = threading.local()


class SwitchInterval:
    """Shortens the interpreter's switch interval while any thread is inside of :meth:`short`.

    Threads that wait for the interpreter lock then get it after 0.5 ms instead of Python's 5 ms. They wait often: each
    socket and mask operation releases the lock and has to get it back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._usual = sys.getswitchinterval()

    @contextmanager
    def short(self) -> Iterator[None]:
        """A context with a short interval."""
        with self._lock:
            if not self._inside:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(_SWITCH_SECONDS, self._usual))
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    sys.setswitchinterval(self._usual)

    def after_fork(self) -> None:
        """Begin anew in a forked process, which lacks the threads that were inside."""
        if self._inside:
            sys.setswitchinterval(self._usual)
        self._lock, self._inside = threading.Lock(), 0


switch_interval = SwitchInterval()
"""The switch interval of this process."""


def run_interruptibly(work: Callable[..., T], *arguments: Any) -> T:
    """Run ``work`` in this thread, with a break after every 0.3 ms in which it calls :func:`yield_gil`.

    A short switch interval alone is not enough: a thread that waits for the interpreter lock gets it only if it also
    has a CPU then. On a busy machine the kernel leaves the CPU to the working thread for up to 5 ms, unless it sleeps.
    """
    _current.slice_began = time.monotonic()
    try:
        return work(*arguments)
    finally:
        _current.slice_began = None


def yield_gil() -> None:
    """Let other threads run now and then, in work that :func:`run_interruptibly` runs; elsewhere do nothing."""
    began: float | None = getattr(_current, "slice_began", None)
    if began is not None and time.monotonic() - began > _SLICE_SECONDS:
        time.sleep(_BREAK_SECONDS)
        _current.slice_began = time.monotonic()


@contextmanager
def until_given_up(is_given_up: Callable[[], bool]) -> Iterator[None]:
    """A context for this thread's work: inside it, :func:`check_deadline` raises once the caller has given up."""
    _current.is_given_up = is_given_up
    try:
        yield
    finally:
        del _current.is_given_up  # frees what it refers to


def check_deadline() -> None:
    """Raise ``TimeoutError`` in work that its caller has given up; long work calls this now and then."""
    is_given_up: Callable[[], bool] | None = getattr(_current, "is_given_up", None)
    if is_given_up is not None and is_given_up():
        raise TimeoutError("the caller no longer waits for this schema")
