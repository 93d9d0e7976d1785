"""The line of the log that says whether such a server was tested."""

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm import version
from vllm.platforms import current_platform

from constrained_k2.vllm_plugin.start.front_end import report_version
from constrained_k2.vllm_plugin.start.versions import VERSIONS


@pytest.mark.parametrize(
    ("number", "is_cpu", "said"),
    [
        ("0.32.0", True, "vLLM 0.32.0 on a CPU: tested in CI"),
        ("0.32.0+cpu", True, "vLLM 0.32.0+cpu on a CPU: tested in CI"),
        ("0.32.7", True, "vLLM 0.32.7 on a CPU: not run. vLLM 0.32.0 on a CPU: tested in CI"),
        ("0.33.0", True, "vLLM 0.33.0 on a CPU: tested by hand, on its Python sources"),
        ("0.33.0", False, "vLLM 0.33.0 on a GPU: not run. vLLM 0.33.0 on a CPU: tested by hand"),
        ("0.99.0", True, "vLLM 0.99.0 on a CPU: not run. vLLM 0.33.0 on a CPU: tested by hand"),
    ],
)
def test_the_log_says_what_was_tested(
    number: str, is_cpu: bool, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(version, "__version__", number)
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda _: is_cpu)
    caplog.set_level("INFO", "vllm.constrained_k2")
    report_version()
    (record,) = caplog.records
    assert said in record.getMessage()
    assert (record.levelname == "WARNING") == ("not run" in said)


def test_each_minor_version_is_listed_once() -> None:
    minors = [row.minor for row in VERSIONS]
    assert len(set(minors)) == len(minors)
    assert all(row.on_cpu or row.on_gpu for row in VERSIONS)
