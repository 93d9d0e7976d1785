"""The vendor verifier's schema suite, unchanged, on the server whose operator has set a finish reserve."""

from pathlib import Path

import pytest

from benchmarks.vendor_verifier.run import FOLDER, run_suite
from constrained_k2.evaluation.server import VllmServer
from tests.data import data

pytestmark = [pytest.mark.server, pytest.mark.slow]


def test_every_case_is_valid(served: VllmServer, tmp_path: Path) -> None:
    result = run_suite(served.url, data(FOLDER), tmp_path / "report.json", ("-n", "4"))
    assert not result.failed, "\n".join(["", *result.failed])
    assert result.total == 408
