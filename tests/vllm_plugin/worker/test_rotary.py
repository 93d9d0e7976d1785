"""Why small models on a CPU are served without vLLM's rotary kernel."""

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

WIDTH = 64


@pytest.fixture(scope="module")
def rotary() -> RotaryEmbedding:
    with set_current_vllm_config(VllmConfig()):
        return RotaryEmbedding(WIDTH, WIDTH, 256, 10_000.0, is_neox_style=False, dtype=torch.float32)


def error(rotary: RotaryEmbedding, queries: torch.Tensor, keys: torch.Tensor) -> float:
    """Relative error of the kernel's queries."""
    positions = torch.arange(len(queries))
    right, _ = rotary.forward_native(positions, queries.clone(), keys.clone())
    found, _ = rotary.forward_cpu(positions, queries.clone(), keys.clone())
    return float((found - right).norm() / right.norm())


def test_the_kernel_for_cpus_turns_queries_of_mla_wrongly(rotary: RotaryEmbedding) -> None:
    """When this fails, vLLM has fixed `ops.rotary_embedding`: drop "-rotary_embedding" in evaluation/server.py."""
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(20, 4, WIDTH, generator=generator)
    keys = torch.randn(20, 1, WIDTH, generator=generator)
    assert error(rotary, queries.flatten(1), keys.flatten(1)) < 1e-5
    assert error(rotary, queries, keys) > 0.1
