"""Statistical test of speculative decoding: a sampled token has the distribution of its logits, whatever the drafts.

A step writes the drafts up to the first rejected one, then one more token. So among the requests that reach a position,
the tokens at this position must have the distribution of the row of logits, with or without drafts.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy.stats import chisquare  # type: ignore[import-untyped]
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

SIZE = 12
ILLEGAL = 5  # the token that every row masks
FEW, MANY = 1, 8
SURE = 1e-6  # p-value below which a sampler is wrong; a right one is above it with the seeds of the tests
ENOUGH = 5  # least expected count of a class in the chi-square test

_CHANCE = torch.Generator().manual_seed(44)
LOGITS = torch.randn(MANY + 1, SIZE, generator=_CHANCE) * 1.5
LOGITS[:, ILLEGAL] = -torch.inf
RIGHT = LOGITS.argmax(dim=1).tolist()
WRONG = LOGITS.masked_fill(LOGITS.isinf(), torch.inf).argmin(dim=1).tolist()

DRAFTS: dict[str, list[int]] = {
    "none": [],
    "one right": RIGHT[:FEW],
    "one wrong": WRONG[:FEW],
    "one illegal": [ILLEGAL],
    "right, then wrong": [*RIGHT[:2], WRONG[2]],
    "right, then illegal": [RIGHT[0], ILLEGAL, RIGHT[2]],
    "many right": RIGHT[:MANY],
    "many wrong": WRONG[:MANY],
}


@dataclass(frozen=True)
class Parameters:
    """A request's sampling parameters."""

    temperature: float = 1.0
    top_k: int = SIZE
    top_p: float = 1.0


BATCHES: dict[str, list[Parameters]] = {
    "all at temperature 1": [Parameters()],
    "several temperatures": [Parameters(0.3), Parameters(0.7), Parameters(2.0)],
    "greedy ones beside": [Parameters(0.0), Parameters(1.0)],
    "top-k": [Parameters(top_k=3), Parameters(0.7), Parameters(0.0)],
    "top-p": [Parameters(top_p=0.8), Parameters(0.7), Parameters(0.0)],
    "top-k and top-p": [Parameters(0.7, 4, 0.9), Parameters(1.3, SIZE, 0.7), Parameters(1.0, 2)],
}


@dataclass(frozen=True)
class Request:
    """One request of a batch."""

    drafts: str
    parameters: Parameters
    is_seeded: bool


def requests_of(batch: str, drafts: Iterable[str], repeats: int) -> list[Request]:
    """Each kind of request of a batch ``repeats`` times, interleaved."""
    return [Request(*kind) for kind in product(drafts, BATCHES[batch], (False, True))] * repeats


def expected(logits: torch.Tensor, parameters: Parameters) -> np.ndarray[Any, Any]:
    """``[SIZE]``, the probability of each token, computed from the definitions of the parameters, without vLLM."""
    row = logits.double().numpy()
    if parameters.temperature == 0:
        return np.eye(SIZE)[row.argmax()]
    row /= parameters.temperature
    chances = np.exp(row - row.max())
    ranked = sorted(range(SIZE), key=lambda token: -row[token])[: parameters.top_k]
    kept, sum_kept, total = [], 0.0, sum(chances[ranked])
    for token in ranked:
        if sum_kept < parameters.top_p * total:
            kept.append(token)
        sum_kept += chances[token]
    left = np.zeros(SIZE)
    left[kept] = chances[kept]
    return left / left.sum()


def sample(sampler: RejectionSampler, requests: Sequence[Request]) -> list[list[int]]:
    """The tokens of one step of a batch, by vLLM's sampler for the V1 model runner."""
    drafts = [DRAFTS[request.drafts] for request in requests]
    counts = [len(each) for each in drafts]
    ends = torch.tensor([count + 1 for count in counts]).cumsum(0)
    is_bonus = torch.zeros(int(ends[-1]), dtype=torch.bool)
    is_bonus[ends - 1] = True
    metadata = SpecDecodeMetadata(
        draft_token_ids=torch.tensor([token for each in drafts for token in each], dtype=torch.int32),
        num_draft_tokens=counts,
        cu_num_draft_tokens=torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32),
        cu_num_sampled_tokens=ends.int(),
        target_logits_indices=(~is_bonus).nonzero().flatten().int(),
        bonus_logits_indices=(ends - 1).int(),
        logits_indices=torch.arange(int(ends[-1]), dtype=torch.int32),
    )
    logits = torch.cat([LOGITS[: count + 1] for count in counts])
    sampled = sampler(metadata, None, logits, sampling_metadata(requests)).sampled_token_ids
    return RejectionSampler.parse_output(sampled, SIZE)[0]


def sampling_metadata(requests: Sequence[Request]) -> SamplingMetadata:
    """The requests' parameters in the form that the V1 model runner hands the sampler."""
    given = [request.parameters for request in requests]
    temperature = torch.tensor([each.temperature for each in given])
    nothing = torch.empty(0)
    return SamplingMetadata(
        temperature=temperature,
        all_greedy=False,
        all_random=bool((temperature > 0).all()),
        top_p=torch.tensor([each.top_p for each in given]) if any(each.top_p < 1 for each in given) else None,
        top_k=(
            torch.tensor([each.top_k for each in given], dtype=torch.int32)
            if any(each.top_k < SIZE for each in given)
            else None
        ),
        generators={
            row: torch.Generator().manual_seed(row) for row, request in enumerate(requests) if request.is_seeded
        },
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=nothing,
        presence_penalties=nothing,
        repetition_penalties=nothing,
        output_token_ids=[[] for _ in requests],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
        spec_token_ids=[DRAFTS[request.drafts] for request in requests],
    )


def check_law(requests: Sequence[Request], written: Sequence[Sequence[int]]) -> int:
    """Assert the distributions by kind of request and position; return how many had enough requests for a test."""
    found: dict[tuple[Parameters, int, str], Counter[int]] = {}
    for request, tokens in zip(requests, written, strict=True):
        drafts = DRAFTS[request.drafts]
        *accepted, last = tokens
        assert accepted == drafts[: len(accepted)] and (accepted == drafts or last != drafts[len(accepted)])
        for position, token in enumerate(tokens):
            for kind in (f"{request.drafts}, {request.is_seeded}", "all"):
                found.setdefault((request.parameters, position, kind), Counter())[token] += 1
    tested = 0
    for (parameters, position, kind), counts in found.items():
        chances = expected(LOGITS[position], parameters)
        what = f"{parameters} at {position}, {kind}"
        tested += check_frequencies([counts[token] for token in range(SIZE)], chances, what)
    return tested


def check_frequencies(counts: Sequence[int], chances: Any, what: str) -> bool:
    """Assert that tokens were drawn with their probabilities; False if they are too few for a test."""
    seen, total = np.array(counts), sum(counts)
    assert not seen[chances == 0].any(), f"{what}: {counts}, which include an impossible token"
    classes: list[list[float]] = []  # [observed, expected] counts; rare tokens share a class
    for token in chances.argsort():
        if not classes or classes[-1][1] >= ENOUGH:
            classes.append([0, 0])
        classes[-1][0] += seen[token]
        classes[-1][1] += chances[token] * total
    if len(classes) < 2:
        return bool(chances.max() == 1)
    chance = chisquare(*zip(*classes, strict=True)).pvalue
    assert chance > SURE, f"{what}: {counts} of {[round(each * total, 1) for each in chances]}, chance {chance:.1e}"
    return True
