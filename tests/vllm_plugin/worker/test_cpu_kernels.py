"""Faults of vLLM's kernels for CPUs, and sampling with drafts: tokens have the same distribution as without drafts."""

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.platforms import current_platform
from vllm.utils import cpu_triton_utils
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler

from constrained_k2.vllm_plugin.worker import patched
from tests.vllm_plugin.draft_law import BATCHES, DRAFTS, check_law, requests_of, sample
from tests.vllm_plugin.patched import patch_vllm

REPEATS = 500


@pytest.fixture(scope="module")
def sampler() -> RejectionSampler:
    """The sampler, as a worker of the CPU build has it with our flags."""
    patch_vllm()
    current_platform.register_triton_kernel_overrides()
    return RejectionSampler(Sampler())


@pytest.mark.parametrize("batch", BATCHES)
def test_drafts_change_no_distribution(sampler: RejectionSampler, batch: str) -> None:
    torch.manual_seed(1)
    requests = requests_of(batch, DRAFTS, REPEATS)
    tested = check_law(requests, sample(sampler, requests))
    assert tested > 10 * len(BATCHES[batch])


def test_vllm_alone_drops_the_parameters() -> None:
    """The fault behind the row for `expand_batch_to_tokens`: if this test fails, delete the row."""
    written = torch.full((3,), 7.0)
    ends = torch.tensor([1, 3], dtype=torch.int32)
    cpu_triton_utils._expand_kernel_impl(written, torch.tensor([0.5, 1.0]), ends, 0, 1)
    assert written.tolist() == [7.0, 7.0, 7.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_each_draft_row_has_its_requests_parameter(dtype: torch.dtype) -> None:
    patch_vllm()
    ends = torch.tensor([2, 2, 3], dtype=torch.int32)
    found = rejection_sampler.expand_batch_to_tokens(torch.tensor([0, 8, 5], dtype=dtype), ends, 3, 0, 1)
    assert found.tolist() == [1, 1, 5]


def test_a_gpu_keeps_vllms_kernel() -> None:
    def kernel(*given: object) -> tuple[object, ...]:
        return given

    elsewhere = torch.empty(2, device="meta")
    given = (elsewhere, elsewhere, 3, 0, 1)
    assert patched.expand_batch_to_tokens(kernel)(*given) == given


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
