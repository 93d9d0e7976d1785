"""Runs a vLLM server on loopback while a ``with`` block is open.

The server ends with the block; on Linux it also ends with the thread that entered the block.
"""

import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import httpx

# This package, with masks computed in the engine core, and in the workers.
BACKEND_FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "kimi_constrained")
CONSTRAINED_FLAGS = (*BACKEND_FLAGS, "--logits-processors", "constrained_k2.vllm_plugin:KimiK2LogitsProcessor")
# Of a model that speaks Kimi K3 in another architecture than Kimi K3's; beside one of the above.
KIMI_K3_FLAGS = ("--tokenizer-mode", "kimi_k3", "--reasoning-parser", "kimi_k3")
# vLLM alone: its builtin parser, and its structural tags constrain every tool's arguments.
STRICT_FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "kimi_k2", "--tool-strict-level", "parameter")
KIMI_K3_STRICT_FLAGS = (*STRICT_FLAGS[:2], "kimi_k3", *STRICT_FLAGS[3:], *KIMI_K3_FLAGS)
API_SERVER = ("vllm.entrypoints.openai.api_server",)
SERVE = ("vllm.entrypoints.cli.main", "serve")  # as ``vllm serve``
RENDER = ("vllm.entrypoints.launchers.render.entry",)  # as ``vllm launch render``: a server without the model's weights
# vLLM's parser; this package adopts its structural tags. The only way with vLLM's Rust front end.
ADOPTED_FLAGS = (*STRICT_FLAGS, "--additional-config", '{"constrained_k2": {"route": "structured_output"}}')
_RUST = "VLLM_USE_RUST_FRONTEND"
WITHOUT_PLUGIN = {"VLLM_PLUGINS": "none"}  # environment of a server that does not load this package
_SMALL_CPU_FLAGS = (
    "--enforce-eager",
    "--max-model-len=4096",
    "--max-num-batched-tokens=4096",  # not below the model length, so that prompts fit without the next flag's chunks
    "--no-enable-chunked-prefill",  # a seeded request whose prefill is chunked kills the CPU engine
    "--max-num-seqs=16",
    # vLLM 0.32.0's rotary kernel for CPUs rotates MLA's queries, [tokens, heads, width], wrongly (relative error 0.8);
    # torch's does not. tests/vllm_plugin/worker/test_cpu_kernels.py says when this can go.
    '--compilation-config={"custom_ops": ["all", "-rotary_embedding"]}',
)
_SMALL_CPU_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # with 2 threads on two cores, decoding was up to 45 times slower under load
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # Longer than the 5 s for which httpx keeps an idle connection, so that the server never closes one in reuse.
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60",
}
_START_SECONDS = 480  # until a server must answer: several may start at once on two cores


def rust_front_end(binary: Path) -> dict[str, str]:
    """The environment of a server whose front end is vLLM's binary ``vllm-rs`` instead of vLLM's Python."""
    return {_RUST: "1", "VLLM_RUST_FRONTEND_PATH": str(binary.resolve())}


def with_settings(flags: Sequence[str], **settings: Any) -> tuple[str, ...]:
    """A server's flags with some of this package's settings, unless they set these."""
    flag, key = "--additional-config", "constrained_k2"
    at = flags.index(flag) if flag in flags else len(flags)
    given = json.loads(flags[at + 1]) if at < len(flags) else {}
    added = json.dumps(given | {key: settings | given.get(key, {})})
    return (*flags[:at], flag, added, *flags[at + 2 :])


class VllmServer:
    """Serves a small model with vLLM while the block is open; on Linux it also ends with the thread that entered it.

    ``flags`` are added to those that a small model on a CPU needs. Raises ``RuntimeError`` with the end of the log if
    the server does not start. ``entry``: the module that is run, and its first arguments. Only :data:`SERVE` takes
    ``--api-server-count`` and ``--headless``; :data:`API_SERVER` ignores them. A headless server (of a second node)
    serves no HTTP, so entering the block does not wait for it: it is ready when the first node's server is.
    """

    def __init__(  # noqa: PLR0913 - what a server is started with
        self,
        model: Path,
        flags: Sequence[str] = CONSTRAINED_FLAGS,
        *,
        log: Path,
        python_path: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        entry: Sequence[str] = API_SERVER,
    ) -> None:
        self.model = model
        self.log = log
        self._is_headless = "--headless" in flags
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"  # without /v1
        if environment and _RUST in environment:  # only ``vllm serve`` starts the Rust front end
            entry = SERVE
        self._command = [
            *(sys.executable, "-m", *entry, "--model", str(model)),
            *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "kimi-k2"),
            *("--trust-remote-code", *_SMALL_CPU_FLAGS, *flags),
        ]
        paths = [*map(str, python_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        if entry == SERVE and not any(metadata.distributions(name="vllm")):
            paths.append(str(_write_distribution(log.with_suffix(".distribution"))))
        self._environment = _SMALL_CPU_ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(paths)} | dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The server's process id; raises ``RuntimeError`` if it is not running."""
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def log_text(self) -> str:
        """The server's output so far; read it inside the block, since vLLM 0.32.0 logs errors on shutdown."""
        return self.log.read_text(errors="replace")

    def __enter__(self) -> Self:
        self._process = self._start()
        try:
            if not self._is_headless:
                self._wait(self._process)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        options: dict[str, Any] = {"stderr": subprocess.STDOUT, "start_new_session": True}
        if sys.platform == "linux":
            options["preexec_fn"] = end_with_parent
        with self.log.open("wb") as log:  # our interpreter and flags
            return subprocess.Popen(self._command, stdout=log, env=os.environ | self._environment, **options)  # noqa: S603

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health", timeout=2, trust_env=False).is_success:
                    return
            time.sleep(0.25)
        code = process.poll()
        problem = f"ended with {code}" if code is not None else f"did not answer within {_START_SECONDS} s"
        log_end = "\n".join(self.log_text().splitlines()[-30:])
        raise RuntimeError(f"the server {problem}:\n{log_end}")

    def _end(self) -> None:
        """End the server, then whatever is left of its engine and worker processes."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # finds engines whose parent is gone, which psutil does not
        process.wait()


def _write_distribution(directory: Path) -> Path:
    """Write the metadata of a distribution ``vllm``: ``vllm serve`` asks for it, and the CPU build has another name."""
    information = directory / "vllm.dist-info"
    information.mkdir(parents=True, exist_ok=True)
    version = metadata.version("vllm-cpu").partition("+")[0]
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    return directory


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """In the child: end with the thread that started it, even after ``kill -9``; see prctl(2)."""
    assert _LIBC is not None
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_port() -> int:
    """A free port below those that Linux gives to client connections, which could take it before the server starts."""
    for port in random.sample(range(20_000, 32_768), 12_768):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port from 20000 to 32767 is free")
