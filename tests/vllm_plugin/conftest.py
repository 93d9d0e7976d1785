"""What all tests of the plugin share."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def seen_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Let ``caplog`` see what the plugin says: vLLM's logger, below which it says it, hands nothing on to the root."""
    logger = logging.getLogger("vllm.constrained_k2")
    logger.addHandler(caplog.handler)
    yield
    logger.removeHandler(caplog.handler)
