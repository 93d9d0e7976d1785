"""The thread pool in which LLGuidance computes the masks of a batch without holding the GIL."""

import os

import llguidance

from constrained_k2.errors import InvalidRequest

_MAX_THREADS = 64


class MaskThreads:
    """Threads that compute a batch's masks without the interpreter lock; by default one for each CPU, at most eight."""

    def __init__(self, count: int | None = None) -> None:
        if count is not None and (type(count) is not int or not 1 <= count <= _MAX_THREADS):
            raise InvalidRequest(f"got {count!r}", "threads", f"Use 1 to {_MAX_THREADS}, or None for the CPUs")
        self.count = count or min(len(os.sched_getaffinity(0)), 8)
        self._executor: llguidance.LLExecutor | None = None
        self._owner = 0

    def executor(self) -> llguidance.LLExecutor:
        """Return this process's thread pool: a forked process makes its own, since it lacks its parent's threads."""
        if self._executor is None or self._owner != os.getpid():
            self._owner = os.getpid()
            self._executor = llguidance.LLExecutor(self.count)
        return self._executor
