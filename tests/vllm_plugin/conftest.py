"""What all tests of the plugin share."""

import logging
import sys
from collections.abc import Iterator

import pytest

from constrained_k2.vllm_plugin.settings import Server


@pytest.fixture(autouse=True)
def forgotten_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test has remembered of a server is forgotten behind it."""
    for name in ("constrains", "model_name", "settings"):
        monkeypatch.setattr(Server, name, getattr(Server, name))


@pytest.fixture(autouse=True)
def seen_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let ``caplog`` see once what the plugin says: set up, vLLM's logger above it hands nothing on to the root."""
    logger = logging.getLogger("vllm.constrained_k2")
    monkeypatch.setattr(logger, "propagate", False)
    if "constrained_k2.vllm_plugin.refusals" in sys.modules:  # lines are left, whatever other tests have had said
        from constrained_k2.vllm_plugin import refusals

        monkeypatch.setattr(refusals, "_limit", refusals.LineLimit(1.0, 20))
    logger.addHandler(caplog.handler)
    yield
    logger.removeHandler(caplog.handler)
