"""Fixtures that the tests of evaluations share: commands that run in this process, and an endpoint."""

from collections.abc import Iterator

import pytest

from tests.cli.conftest import run
from tests.evaluation.fake_endpoint import FakeEndpoint

__all__ = ["run"]


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with FakeEndpoint() as fake:
        yield fake
