"""How often a mask forbids the token that the model would have chosen first, counted where the logits are.

The likeliest token of each row is found before the masks are applied, and looked at again behind them: if it is -inf
now, a mask forbade it. The count stays on the device; a copy of it to the host is ordered behind each addition and
never waited for, so what the host reads may be a step old. Reading all logits once more takes a GPU some tens of
microseconds, a CPU milliseconds; so only one masked step in some is looked at.
"""

import sys
from functools import wraps
from typing import Any

import torch
from vllm.v1.worker.worker_base import WorkerWrapperBase

from constrained_k2.counters import EngineCounters, engine_counters
from constrained_k2.vllm_plugin.admission import OFF, XARGS_KEY, settings_in

_OURS = "_constrained_k2"  # marks what is wrapped already


class FirstChoices:
    """Counts in the process that masks.

    Make one, and call it around the masks of each step::

        likeliest = first_choices.before(logits)
        ...  # rows of logits are masked in place
        first_choices.after(logits, likeliest, rows)

    Args:
        every: One masked step in so many is examined; 0 for none.
        counters: Where it counts.
    """

    def __init__(self, every: int, counters: EngineCounters = engine_counters) -> None:
        self._every = every
        self._counters = counters
        self._steps = 0
        self._changed: torch.Tensor | None = None  # int64 [], on the device
        self._host: torch.Tensor | None = None  # int64 [1], seen by the counters

    def before(self, logits: torch.Tensor) -> torch.Tensor | None:
        """The likeliest token of each row, if this step is to be examined. Call it only in steps that mask.

        Args:
            logits: float ``[rows, width]``, on any device.

        Returns:
            int64 ``[rows, 1]`` on the device, for :meth:`after`; None if this step is not examined.
        """
        self._steps += 1
        if not self._every or self._steps % self._every or not len(logits):
            return None
        return logits.argmax(dim=-1, keepdim=True)

    def after(self, logits: torch.Tensor, likeliest: torch.Tensor | None, rows: int) -> None:
        """Count the rows whose likeliest token is forbidden now.

        Args:
            logits: As in :meth:`before`; since then nothing but our masks has changed them.
            likeliest: What :meth:`before` returned.
            rows: How many rows have been masked; the others need not be told, nothing of theirs is -inf.
        """
        if likeliest is None:
            return
        if self._changed is None or self._host is None:
            self._changed = torch.zeros((), dtype=torch.int64, device=logits.device)
            self._host = torch.zeros(1, dtype=torch.int64, pin_memory=logits.is_cuda)
            self._counters.changed_rows.append(self._host.numpy())
        self._changed += logits.gather(1, likeliest).isneginf().sum()
        self._host.copy_(self._changed, non_blocking=True)
        self._counters.examined_rows += rows


class BackendFirstChoices:
    """Counts on the structured-output route, where vLLM's model runners apply the masks that the engine core sends.

    Which requests are ours the worker learns as they come. A step in which others of vLLM's structured-output requests
    are masked too is not examined: their masks are none of ours. Nothing is changed in vLLM's runners before the first
    request of ours has come.
    """

    def __init__(self) -> None:
        self._ours: set[str] = set()
        self._first_choices: FirstChoices | None = None

    def follow(self, scheduler_output: Any, vllm_config: Any) -> None:
        """Take notice of the requests that enter and leave.

        Args:
            scheduler_output: vLLM's ``SchedulerOutput``.
            vllm_config: vLLM's ``VllmConfig``.
        """
        for new in scheduler_output.scheduled_new_reqs:
            extra = getattr(new.sampling_params, "extra_args", None)
            if extra and extra.get(XARGS_KEY, OFF) != OFF:
                self._ours.add(new.req_id)
        if self._ours:
            if self._first_choices is None:
                self._first_choices = FirstChoices(settings_in(vllm_config).first_choices)
                self._watch_runners()
            self._ours -= scheduler_output.finished_req_ids

    def _watch_runners(self) -> None:
        """Look at the logits before and behind vLLM's masks, in whichever runner this process has loaded."""
        v1 = sys.modules.get("vllm.v1.worker.gpu_model_runner")
        if v1 is not None:
            apply = v1.apply_grammar_bitmask

            @wraps(apply)
            def apply_v1(scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: torch.Tensor) -> None:
                ids, masks = grammar_output.structured_output_request_ids, grammar_output.grammar_bitmask
                likeliest = self._before(logits, ids)
                apply(scheduler_output, grammar_output, input_batch, logits)
                self._after(logits, likeliest, len(masks))

            v1.apply_grammar_bitmask = apply_v1  # type: ignore[attr-defined] # the name under which the runner calls it
        v2 = sys.modules.get("vllm.v1.worker.gpu.structured_outputs")
        if v2 is not None:
            apply_masks = v2.StructuredOutputsWorker.apply_grammar_bitmask

            @wraps(apply_masks)
            def apply_v2(worker: Any, logits: torch.Tensor, input_batch: Any, ids: list[str], masks: Any) -> None:
                likeliest = self._before(logits, ids)
                apply_masks(worker, logits, input_batch, ids, masks)
                self._after(logits, likeliest, len(masks))

            v2.StructuredOutputsWorker.apply_grammar_bitmask = apply_v2

    def _before(self, logits: torch.Tensor, request_ids: list[str]) -> torch.Tensor | None:
        if self._first_choices is None or not request_ids or not self._ours.issuperset(request_ids):
            return None
        return self._first_choices.before(logits)

    def _after(self, logits: torch.Tensor, likeliest: torch.Tensor | None, rows: int) -> None:
        if likeliest is not None and self._first_choices is not None:
            self._first_choices.after(logits, likeliest, rows)


def install() -> None:
    """Have this process's worker, if it comes to have one, count on the structured-output route."""
    execute_model = WorkerWrapperBase.execute_model
    if hasattr(execute_model, _OURS):
        return
    backend = BackendFirstChoices()

    @wraps(execute_model)
    def followed(self: Any, scheduler_output: Any) -> Any:
        backend.follow(scheduler_output, self.vllm_config)
        return execute_model(self, scheduler_output)

    setattr(followed, _OURS, True)
    WorkerWrapperBase.execute_model = followed
