"""The vendor verifier's schema suite, unchanged, on servers whose operator has set a finish reserve."""

from pathlib import Path

import pytest

from benchmarks.vendor_verifier import FOLDER, run_suite
from constrained_k2.evaluation.server import BACKEND_FLAGS, KIMI_K3_FLAGS, VllmServer
from constrained_k2.testing import build_model
from tests.kit.data import data
from tests.kit.servers import settings
from tests.kit.warm import WarmServer

pytestmark = [pytest.mark.server, pytest.mark.slow]
CASES = 408


def check(server: VllmServer, folder: Path, output: Path) -> None:
    """Every case of the suite passes."""
    result = run_suite(server.url, folder, output / "report.json", ("-n", "4"))
    assert not result.failed, "\n".join(["", *result.failed])
    assert result.total == CASES


def test_every_case_is_valid(served: VllmServer, tmp_path: Path) -> None:
    check(served, data(FOLDER), tmp_path)


@pytest.mark.only_all
def test_every_case_is_valid_in_the_format_of_kimi_k3(tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    folder = data(FOLDER)
    model = build_model(tmp_path / "model", arch="llama", wire_format="kimi_k3")
    flags = (*BACKEND_FLAGS, *KIMI_K3_FLAGS, *settings(finish_reserve=60))
    with WarmServer(model, flags, log=tmp_path / "server.log") as server:
        check(server, folder, tmp_path)
