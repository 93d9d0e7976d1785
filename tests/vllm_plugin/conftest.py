"""What all tests of the plugin share."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def seen_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let ``caplog`` see once what the plugin says: set up, vLLM's logger above it hands nothing on to the root."""
    logger = logging.getLogger("vllm.constrained_k2")
    monkeypatch.setattr(logger, "propagate", False)
    logger.addHandler(caplog.handler)
    yield
    logger.removeHandler(caplog.handler)
