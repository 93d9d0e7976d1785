"""Runs a command within a time limit; it ends with its parent."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

GRACE = 10.0
"""Seconds between the request to end and the kill."""

_LOG_LINES = 12
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class Ended(NamedTuple):
    """The end of a process.

    Attributes:
        code: Its exit code; negative for a signal.
        in_time: False if it was ended at its limit.
        log_end: The last lines that it wrote to its log.
    """

    code: int
    in_time: bool
    log_end: str


def run_limited(
    command: Sequence[str], *, limit: float, log: Path, environment: Mapping[str, str], output: int | None = None
) -> Ended:
    """Run a command in a process group of its own; end the group after ``limit`` seconds.

    Args:
        command: The command.
        limit: Seconds.
        log: File for its standard error, and for its standard output without ``output``.
        environment: Variables beside those of this process.
        output: Descriptor for its standard output.
    """
    options: dict[str, Any] = {"preexec_fn": _end_with_parent} if _LIBC is not None else {}
    in_time = True
    with log.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603 - our interpreter and modules
            command,
            stdin=subprocess.DEVNULL,
            stdout=file if output is None else output,
            stderr=file,
            env=os.environ | dict(environment),
            start_new_session=True,
            **options,
        )
        try:
            process.wait(max(1.0, limit))
        except subprocess.TimeoutExpired:
            in_time = False
        finally:
            _end(process)
    lines = log.read_text(errors="replace").splitlines()
    return Ended(process.returncode, in_time, "\n".join(lines[-_LOG_LINES:]))


def end_on_request() -> None:
    """Have SIGTERM raise SystemExit, so that the blocks that end other processes run."""

    def end(*_: object) -> None:
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ask the process to end if it runs, then kill what is left of its group."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_with_parent() -> None:
    """In the child: end with the thread that started it, even after ``kill -9``; see prctl(2)."""
    assert _LIBC is not None
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
