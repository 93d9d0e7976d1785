"""Counts, in the process that has the logits, how often a mask forbids the likeliest token.

The likeliest token of each row is found before the masks are applied and looked up again afterwards: if it is -inf
then, a mask forbade it. The count stays on the device; its copy to the host is ordered after each addition and never
waited for, so the host's number may be a step old. Reading all logits once more takes a GPU some tens of microseconds,
a CPU milliseconds; so only one masked step in some is examined.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from constrained_k2.vllm_plugin.flags import XARGS_KEY
from constrained_k2.vllm_plugin.metrics.counters import EngineCounters, engine_counters
from constrained_k2.vllm_plugin.settings import OFF, settings_in


class ArgmaxProbe:
    """Examines one masked step in ``every`` (0: none): call :meth:`before` and :meth:`after` around the masks."""

    def __init__(self, every: int, counters: EngineCounters = engine_counters) -> None:
        self._every = every
        self._counters = counters
        self._steps = 0
        self._changed: torch.Tensor | None = None  # int64 [], on the device
        self._host: torch.Tensor | None = None  # int64 [1], seen by the counters

    def before(self, logits: torch.Tensor) -> torch.Tensor | None:
        """The likeliest tokens, int64 ``[rows, 1]``; None if this step is not examined."""
        self._steps += 1
        if not self._every or self._steps % self._every or not len(logits):
            return None
        return logits.argmax(dim=-1, keepdim=True)

    def after(self, logits: torch.Tensor, likeliest: torch.Tensor | None, rows: int) -> None:
        """Count the rows whose likeliest token is forbidden now: nothing but our masks has changed the logits since."""
        if likeliest is None:
            return
        if self._changed is None or self._host is None:
            self._changed = torch.zeros((), dtype=torch.int64, device=logits.device)
            self._host = torch.zeros(1, dtype=torch.int64, pin_memory=logits.is_cuda)
            self._counters.changed_rows.append(self._host.numpy())
        self._changed += logits.gather(1, likeliest).isneginf().sum()
        self._host.copy_(self._changed, non_blocking=True)
        self._counters.examined_rows += rows


class WorkerProbe:
    """Counts on the structured-output route, where vLLM's model runners apply the masks that the engine core sends.

    A step that masks other requests too is not examined: their masks are not ours.
    """

    def __init__(self) -> None:
        self._ours: set[str] = set()
        self._probe: ArgmaxProbe | None = None

    def follow(self, scheduler_output: Any, vllm_config: Any) -> None:
        """Note the requests that enter and leave, by vLLM's ``SchedulerOutput``."""
        for new in scheduler_output.scheduled_new_reqs:
            extra = getattr(new.sampling_params, "extra_args", None)
            if extra and extra.get(XARGS_KEY, OFF) != OFF:
                self._ours.add(new.req_id)
        if self._ours:
            if self._probe is None:
                self._probe = ArgmaxProbe(settings_in(vllm_config).argmax_sample_interval)
            self._ours -= scheduler_output.finished_req_ids

    @contextmanager
    def around(self, logits: torch.Tensor, request_ids: list[str], rows: int) -> Iterator[None]:
        """If the step is examined, compare the logits before and after the rows of these requests are masked."""
        probe = self._probe if request_ids and self._ours.issuperset(request_ids) else None
        likeliest = None if probe is None else probe.before(logits)
        yield
        if probe is not None:
            probe.after(logits, likeliest, rows)


worker_probe = WorkerProbe()
