"""Patches of the model runners: examine the masked rows that the engine core planned.

:mod:`constrained_k2.vllm_plugin.shared.row_plan` says which ones, ``row_probe`` how they are examined, ``declining``
how calls are declined.
"""

from typing import Any

import torch

from constrained_k2.vllm_plugin.shared.declining import declining
from constrained_k2.vllm_plugin.shared.row_plan import PlannedRow, plans_of
from constrained_k2.vllm_plugin.shared.row_probe import row_probe
from constrained_k2.vllm_plugin.start.patch import wrapper


@wrapper
def apply_grammar_bitmask(
    original: Any, scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: Any
) -> None:
    """Look at planned rows before and after vLLM masks them: the V1 model runner."""
    ids = grammar_output.structured_output_request_ids
    plan, named = plans_of(ids)
    if not (plan or named):
        original(scheduler_output, grammar_output, input_batch, logits)
        return
    drafts = scheduler_output.scheduled_spec_decode_tokens
    examined = _rows(plan, input_batch.req_ids, drafts)
    in_names = _rows([row.planned for row in named], input_batch.req_ids, drafts)
    with row_probe.around(logits, examined, plan), declining.around(logits, in_names, named):
        original(scheduler_output, grammar_output, input_batch, logits)


@wrapper
def apply_grammar_bitmask_v2(  # noqa: PLR0913, PLR0917 - vLLM's signature
    original: Any, self: Any, logits: Any, input_batch: Any, grammar_req_ids: list[str], grammar_bitmask: Any
) -> None:
    """The same in the V2 model runner, in which only the device may know how many drafts are verified."""
    plan, named = plans_of(grammar_req_ids)
    if not (plan or named):
        original(self, logits, input_batch, grammar_req_ids, grammar_bitmask)
        return
    examined = _rows_on_device(plan, input_batch)
    in_names = _rows_on_device([row.planned for row in named], input_batch)
    with row_probe.around(logits, examined, plan), declining.around(logits, in_names, named):
        original(self, logits, input_batch, grammar_req_ids, grammar_bitmask)


def _rows(plan: list[PlannedRow], batch: list[str], drafts: dict[str, list[int]]) -> list[int]:
    """The row of the logits that each planned row is; -1 for a request that is not in the batch."""
    starts: dict[str, int] = {}
    start = 0
    for request_id in batch:
        starts[request_id] = start
        start += 1 + len(drafts.get(request_id, ()))
    return [starts[row.request_id] + row.offset if row.request_id in starts else -1 for row in plan]


def _rows_on_device(plan: list[PlannedRow], batch: Any) -> torch.Tensor:
    """The same, int64 on the device; -1 also for drafts that are not verified."""
    if not plan:
        return torch.empty(0, dtype=torch.int64)
    numbers = {request_id: number for number, request_id in enumerate(batch.req_ids)}
    known = [(numbers.get(row.request_id, -1), row.offset) for row in plan]
    ends = batch.cu_num_logits  # int32 [requests + 1]
    pinned = torch.tensor(known, dtype=torch.int64, pin_memory=ends.is_cuda)
    requests, offsets = pinned.to(ends.device, non_blocking=True).unbind(1)
    rows = ends[requests.clamp(min=0)] + offsets
    return torch.where((requests >= 0) & (rows < ends[requests + 1]), rows, -1)
