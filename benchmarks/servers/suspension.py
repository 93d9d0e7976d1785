"""Suspends servers that are not asked: idle vLLM processes poll."""

from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from constrained_k2.evaluation.server import VllmServer


def suspend(server: VllmServer) -> None:
    """Suspend all processes of a server (SIGSTOP)."""
    for process in _family(server):
        process.suspend()


def resume(server: VllmServer) -> None:
    """Resume all processes of a server."""
    for process in _family(server):
        process.resume()


@contextmanager
def running(server: VllmServer) -> Iterator[VllmServer]:
    """A suspended server that runs within the block."""
    resume(server)
    try:
        yield server
    finally:
        suspend(server)


def _family(server: VllmServer) -> list[psutil.Process]:
    process = psutil.Process(server.pid)
    return [process, *process.children(recursive=True)]
