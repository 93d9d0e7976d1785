"""All tests of the API server run in a process that has our replacements."""

import pytest

from tests.vllm_plugin.patched import patch_vllm


@pytest.fixture(autouse=True)
def patched() -> None:
    patch_vllm()
