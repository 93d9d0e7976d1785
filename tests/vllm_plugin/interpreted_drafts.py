"""Distributions with drafts by vLLM's GPU kernels, in Triton's interpreter; test_processor_v2.py runs it in a process.

The interpreter takes some 0.1 s per request, so there are few requests and few kinds of drafts.
"""

import tests.kit.triton_on_cpu  # isort: skip # noqa: F401 - before vLLM
import vllm.v1.worker.cpu.shm  # isort: skip # noqa: F401 - vLLM's CPU worker replaces parts of the V2 runner there

import pytest
import torch
from vllm import SamplingParams
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler

from tests.kit.budget import LEVEL
from tests.vllm_plugin.draft_law import BATCHES, DRAFTS, LOGITS, SIZE, Request, check_law, requests_of, sample
from tests.vllm_plugin.v2_engine import V2Engine

REPEATS = 12
KINDS = ["none", "one wrong", "right, then wrong", "right, then illegal"]
LONGEST = 3
ON_V1, ON_V2 = (
    (BATCHES, BATCHES) if LEVEL == "all" else (["greedy ones beside", "top-k and top-p"], ["greedy ones beside"])
)


@pytest.mark.parametrize("batch", ON_V1)
def test_drafts_change_no_distribution_on_the_v1_runner(batch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topk_topp_sampler, "HAS_TRITON", False)  # the interpreter cannot run top-k and top-p's kernel
    torch.manual_seed(1)
    sampler = Sampler()
    sampler.topk_topp_sampler.forward = sampler.topk_topp_sampler.forward_native  # as on a GPU without FlashInfer
    requests = requests_of(batch, KINDS, REPEATS)
    assert check_law(requests, sample(RejectionSampler(sampler), requests)) > 5 * len(BATCHES[batch])


@pytest.mark.parametrize("batch", ON_V2)
def test_drafts_change_no_distribution_on_the_v2_runner(batch: str) -> None:
    requests = {str(number): request for number, request in enumerate(requests_of(batch, KINDS, REPEATS))}
    engine = V2Engine(None, SIZE, LONGEST, len(requests))
    engine.begin({name: (params(name, request), 1, [0]) for name, request in requests.items()})
    drafts = {name: DRAFTS[request.drafts] for name, request in requests.items()}
    engine.step(list(requests), LOGITS[:1].repeat(len(requests), 1))  # the prompt, a step without drafts
    written = engine.step(list(requests), torch.cat([LOGITS[: len(each) + 1] for each in drafts.values()]), drafts)
    assert check_law(list(requests.values()), [written[name] for name in requests]) > 5 * len(BATCHES[batch])


def params(name: str, request: Request) -> SamplingParams:
    """The request's parameters as vLLM's."""
    given = request.parameters
    return SamplingParams(
        temperature=given.temperature,
        top_k=given.top_k,
        top_p=given.top_p,
        seed=int(name) if request.is_seeded else None,
    )
