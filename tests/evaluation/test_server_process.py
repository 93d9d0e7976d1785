"""A server does not outlive the process that started it."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2.testing import build_model

pytestmark = [pytest.mark.server, pytest.mark.skipif(sys.platform != "linux", reason="prctl(2) is Linux's")]

SCRIPT = """
import sys, time
from pathlib import Path
from constrained_k2.evaluation.server import VllmServer
with VllmServer(Path(sys.argv[1]), log=Path(sys.argv[2])) as server:
    print(server.pid, flush=True)
    time.sleep(600)
"""


def test_killed_without_a_word(tmp_path: Path) -> None:
    model = build_model(tmp_path / "model", arch="llama")
    command = [sys.executable, "-c", SCRIPT, str(model), str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        line = parent.stdout.readline()
        assert line, (tmp_path / "log").read_text(errors="replace")[-2000:]
        server = psutil.Process(int(line))
        family = [server, *server.children(recursive=True)]
        assert len(family) > 1, "the engine has no process of its own: what is tested?"
        parent.kill()
    _, alive = psutil.wait_procs(family, timeout=120)
    for process in alive:
        process.kill()
    assert not alive
