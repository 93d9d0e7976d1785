"""A real vLLM server for the length of a ``with`` block: on loopback, ended by its own pid or with its parent."""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

BACKEND_FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "kimi_k2_constrained")
"""What turns this package on, in the engine core."""

CONSTRAINED_FLAGS = (*BACKEND_FLAGS, "--logits-processors", "constrained_k2.vllm_plugin:KimiK2LogitsProcessor")
"""What turns it on, in the workers."""

STRICT_FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "kimi_k2", "--tool-strict-level", "parameter")
"""vLLM by itself: its own parser, and every tool's arguments constrained by its own structural tags."""

WITHOUT_PLUGIN = {"VLLM_PLUGINS": "none"}
"""The environment of a server that does not load this package."""

_SMALL_CPU_FLAGS = (
    "--enforce-eager",
    "--max-model-len=4096",
    "--max-num-batched-tokens=4096",  # not below the model length: seeds with chunked prefill kill the CPU engine
    "--max-num-seqs=16",
    # vLLM 0.32.0's rotary kernel for CPUs turns queries of the shape [tokens, heads, width], as MLA has them, wrongly
    # (relative error 0.8), and positions then mean nothing. torch's is right. tests/vllm_plugin/test_rotary.py says
    # when this can go.
    '--compilation-config={"custom_ops": ["all", "-rotary_embedding"]}',
)
_SMALL_CPU_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # with more, decoding on two cores was up to 45 times slower under load
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # Above the 5 s after which clients let go of an idle connection: else one may be closed as it is taken up again.
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60",
}

_START_SECONDS = 240  # until a server must answer


class VllmServer:
    """Starts ``vllm serve`` of a small model when the block is entered and ends it when the block is left.

    On Linux it also ends when the thread that entered the block is gone, however that came.

    Args:
        model: The model's directory.
        flags: Flags besides those that a small model on a CPU needs.
        log: The file that takes the server's output.
        python_path: Directories that the server can import from besides the installed packages.
        environment: Variables besides those of this process and those that a small model on a CPU needs.

    Raises:
        RuntimeError: The server does not come up; the message ends with the end of its log.
    """

    def __init__(
        self,
        model: Path,
        flags: Sequence[str] = CONSTRAINED_FLAGS,
        *,
        log: Path,
        python_path: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.model = model
        self.log = log
        self._flags = flags
        self._environment = dict(environment or {})
        self._python_path = [*map(str, python_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process: subprocess.Popen[bytes] | None = None
        self._port = _free_port()

    @property
    def url(self) -> str:
        """The server's address, without ``/v1``."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The server's process.

        Raises:
            RuntimeError: It does not run.
        """
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def log_text(self) -> str:
        """What the server has written so far.

        Judge it before the block is left: ending, vLLM 0.32.0 often logs an ``EngineDeadError`` with a traceback (three
        times of six), without this package too. Its shutdown cancels the task that reads the engine's
        outputs (``MPClient.shutdown``), which hands that error on, and only later ``AsyncLLM``'s output handler.
        """
        return self.log.read_text(errors="replace")

    def __enter__(self) -> Self:
        # Not ``vllm serve``: the CPU build is a distribution of another name, which that command does not find.
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model)),
            *("--host", "127.0.0.1", "--port", str(self._port), "--served-model-name", "kimi-k2"),
            *("--trust-remote-code", *_SMALL_CPU_FLAGS, *self._flags),
        ]
        python_path = {"PYTHONPATH": os.pathsep.join(self._python_path)}
        environment = os.environ | _SMALL_CPU_ENVIRONMENT | python_path | self._environment
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and flags
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one system call
            )
        try:
            self._wait()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with {self._process.returncode}:\n{self._log_end()}")
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health", timeout=2).is_success:
                    return
            time.sleep(0.25)
        raise RuntimeError(f"the server did not answer within {_START_SECONDS} s:\n{self._log_end()}")

    def _log_end(self) -> str:
        return "\n".join(self.log_text().splitlines()[-30:])

    def _end(self) -> None:
        """End the server and the engine process it started: they are one process group of their own."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """In the child: be ended when the thread that started it is gone, as after ``kill -9``, which runs no block's end.

    Linux alone knows how (prctl(2)).
    """
    assert _LIBC is not None
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_port() -> int:
    """A port that is free now, and that no client's connection is given before the server takes it, seconds later."""
    ports = list(range(20_000, 32_768))  # below the range that Linux takes clients' ports from
    random.shuffle(ports)
    for port in ports:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port from 20000 to 32767 is free")
