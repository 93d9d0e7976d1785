"""Servers and engines that start warm: a process that has imported vLLM forks them, and they fork their workers.

A server that is started as users start it imports vLLM three times, one after the other, in five sixths of its time.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, cast

from prometheus_client import values

from constrained_k2.evaluation.server import CONSTRAINED_FLAGS, VllmServer, end_with_parent, with_settings

_CONTEXT = multiprocessing.get_context("forkserver")


def with_calls(flags: Sequence[str]) -> Sequence[str]:
    """The flags of a server of a random model, which means none of its calls."""
    is_ours = any("constrained" in flag for flag in flags)
    return with_settings(flags, undeclared_calls="nearest") if is_ours else flags


class WarmServer(VllmServer):
    """A server as :class:`VllmServer` of a random model, started without the time to import vLLM."""

    def __init__(self, model: Path, flags: Sequence[str] = CONSTRAINED_FLAGS, **options: Any) -> None:
        super().__init__(model, with_calls(flags), **options)

    def _start(self) -> subprocess.Popen[bytes]:
        interpreter, _, *arguments = self._command
        assert interpreter == sys.executable
        started = Forked(_serve, arguments, os.environ | self._environment, self.log)
        return cast("subprocess.Popen[bytes]", started)  # it has the methods that a server's process needs


class Forked:
    """A fork that calls a function of a module with the arguments, in a session of its own; ends with its parent.

    vLLM is imported in it. ``environment`` is all of its environment; its output goes to the log.
    """

    def __init__(
        self, function: Callable[..., None], arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        _CONTEXT.set_forkserver_preload(["tests.kit.warm_imports"])
        kept = dict(os.environ)
        os.environ["OMP_NUM_THREADS"] = "1"  # torch reads it when it is imported
        try:
            forkserver.ensure_running()
        finally:
            os.environ.clear()
            os.environ.update(kept)
        self._process = _CONTEXT.Process(target=_begin, args=(function, arguments, dict(environment), str(log)))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def terminate(self) -> None:
        with suppress(ProcessLookupError):
            self._process.terminate()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("a fork", timeout or 0)
        return code


def _begin(function: Callable[..., None], arguments: Sequence[str], environment: dict[str, str], log: str) -> None:
    """In the fork."""
    os.setsid()
    end_with_parent()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    # For CPUs vLLM would spawn engine cores and workers, which import it again.
    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method=None: fork  # type: ignore[assignment]
    os.register_at_fork(after_in_child=_share_metrics)
    _wait_without_spinning()
    function(*arguments)


def _serve(*arguments: str) -> None:
    """Run a module with arguments, as ``python -m`` does."""
    sys.argv = list(arguments)
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def _share_metrics() -> None:
    """Have several API servers share their metrics: prometheus_client decides that once, when it is imported."""
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        values.ValueClass = values.get_value_class()  # type: ignore[no-untyped-call]


def _wait_without_spinning() -> None:
    """Have vLLM's processes sleep between two looks for a message: for a second after each, they would spin.

    They still look, since a notification may be lost: vLLM then waits five seconds.
    """
    from vllm.distributed.device_communicators import shm_broadcast

    assert callable(shm_broadcast.sched_yield)
    shm_broadcast.sched_yield = lambda: time.sleep(0.0005)
