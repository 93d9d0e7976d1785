"""Patches of workers: examine rows of logits, send counters, repeat parameters for draft tokens.

The engine core plans the rows: :mod:`constrained_k2.vllm_plugin.shared.row_plan` says which, ``row_probe`` how they are
examined, ``declining`` how calls are declined.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from constrained_k2.vllm_plugin.shared.counters import EngineCounters, engine_counters
from constrained_k2.vllm_plugin.shared.declining import declining
from constrained_k2.vllm_plugin.shared.row_plan import PlannedRow, plans_of
from constrained_k2.vllm_plugin.shared.row_probe import row_probe
from constrained_k2.vllm_plugin.shared.transport import FIELD
from constrained_k2.vllm_plugin.start.patch import wrapper


@wrapper
def apply_grammar_bitmask(
    original: Any, scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: Any
) -> None:
    """Look at planned rows before and after vLLM masks them: the V1 model runner."""
    drafts = scheduler_output.scheduled_spec_decode_tokens
    ids = grammar_output.structured_output_request_ids
    with _watched(logits, ids, lambda plan: _rows(plan, input_batch.req_ids, drafts)):
        original(scheduler_output, grammar_output, input_batch, logits)


@wrapper
def apply_grammar_bitmask_v2(  # noqa: PLR0913, PLR0917 - vLLM's signature
    original: Any, self: Any, logits: Any, input_batch: Any, grammar_req_ids: list[str], grammar_bitmask: Any
) -> None:
    """The same in the V2 model runner, in which only the device may know how many drafts are verified."""
    with _watched(logits, grammar_req_ids, lambda plan: _rows_on_device(plan, input_batch)):
        original(self, logits, input_batch, grammar_req_ids, grammar_bitmask)


@contextmanager
def _watched(logits: Any, ids: list[str], locate: Callable[[list[PlannedRow]], Any]) -> Iterator[None]:
    """Examine the rows that come with some ids, and decline their calls; ``locate`` says which row each is."""
    examined, named = plans_of(ids)
    in_names = locate(list(named)) if named else ()
    probing = row_probe.around(logits, locate(examined) if examined else ())
    with probing, declining.around(logits, in_names, list(named.values())):
        yield


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
    numbers = {request_id: number for number, request_id in enumerate(batch.req_ids)}
    known = [(numbers.get(row.request_id, -1), row.offset) for row in plan]
    ends = batch.cu_num_logits  # int32 [requests + 1]
    pinned = torch.tensor(known, dtype=torch.int64, pin_memory=ends.is_cuda)
    requests, offsets = pinned.to(ends.device, non_blocking=True).unbind(1)
    rows = ends[requests.clamp(min=0)] + offsets
    return torch.where((requests >= 0) & (rows < ends[requests + 1]), rows, -1)


def model_runner_output_getstate(original: Any) -> Any:
    """Add this process's totals, if there are new ones, to a pickled output."""
    sent = EngineCounters().snapshot()["totals"]

    def getstate(self: Any) -> Any:
        nonlocal sent
        state = original(self)
        row_probe.count()
        declining.count()
        counted = engine_counters.snapshot()
        if counted["totals"] == sent:
            return state
        sent = counted["totals"]
        return {**state, FIELD: counted}

    return getstate


@wrapper
def expand_batch_to_tokens(  # noqa: PLR0913, PLR0917 - vLLM's signature
    original: Any,
    x: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> torch.Tensor:
    """Repeat each request's parameter for its draft tokens. On a GPU vLLM's kernel does that.

    On a CPU, vLLM's ``_expand_kernel_impl`` (``vllm/utils/cpu_triton_utils.py``) has a C++ kernel write to an int64
    copy of the result and discards the copy, so the parameters are uninitialized memory. Copying back would not be
    enough: as int64, a temperature of 0.7 is 0.

    Args:
        original: vLLM's function.
        x: ``[requests]``, one parameter, any dtype.
        cu_num_tokens: ``[requests]``, cumulative number of draft tokens.
        num_tokens: Number of draft tokens of the batch.
        replace_from: Value to replace, such as the temperature 0 of greedy requests.
        replace_to: Its replacement.

    Returns:
        ``[num_tokens]``, the dtype of ``x``.
    """
    if x.device.type != "cpu":
        return original(x, cu_num_tokens, num_tokens, replace_from, replace_to)
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return x.masked_fill(x == replace_from, replace_to).repeat_interleave(counts, output_size=num_tokens)
