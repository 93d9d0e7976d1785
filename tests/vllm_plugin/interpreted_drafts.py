"""The law of drafts for the V1 runner's GPU kernels, in Triton's interpreter; run by test_processor_v2.py in a process of its own.

The interpreter takes some 0.1 s a request: few requests, and few kinds of drafts.
"""

import tests.triton_on_cpu  # isort: skip # noqa: F401 - before vLLM

import pytest
import torch
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler

from tests.budget import LEVEL
from tests.vllm_plugin.draft_law import BATCHES, check_law, requests_of, sample

REPEATS = 12
KINDS = ["none", "one wrong", "right, then wrong", "right, then illegal"]
TRIED = BATCHES if LEVEL == "all" else ["greedy ones beside", "top-k and top-p"]


@pytest.mark.parametrize("batch", TRIED)
def test_drafts_change_no_distribution_on_the_v1_runner(batch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topk_topp_sampler, "HAS_TRITON", False)  # the interpreter cannot run top-k and top-p's kernel
    torch.manual_seed(1)
    sampler = Sampler()
    sampler.topk_topp_sampler.forward = sampler.topk_topp_sampler.forward_native  # as on a GPU without FlashInfer
    requests = requests_of(batch, KINDS, REPEATS)
    assert check_law(requests, sample(RejectionSampler(sampler), requests)) > 5 * len(BATCHES[batch])
