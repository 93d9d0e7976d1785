"""Patches of the engine core: the intake of requests, and the scheduler.

vLLM's own schedulers and other vendors' can be configured; :func:`constraining` puts :class:`ConstrainingScheduler` in
front of any of them.
"""

from functools import cache, cached_property
from typing import Any

from constrained_k2.vllm_plugin.engine_core.structured_output import ConstrainedOutputManager
from constrained_k2.vllm_plugin.shared.declining import declining
from constrained_k2.vllm_plugin.shared.row_probe import row_probe
from constrained_k2.vllm_plugin.shared.transport import FIELD, Collected
from constrained_k2.vllm_plugin.start.patch import wrapper


@wrapper
def preprocess_add_request(original: Any, self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Prepare a request for its route: check or adopt one that no front end of ours has tagged."""
    manager = self.structured_output_manager
    if isinstance(manager, ConstrainedOutputManager) and manager.intake is not None:
        manager.intake.take(request)
    return original(self, request, *args, **kwargs)


@wrapper
def get_scheduler_cls(original: Any, self: Any) -> type:
    """Put our part in front of the configured scheduler."""
    return constraining(original(self))


class ConstrainingScheduler:
    """Comes before a scheduler's class; an engine without our flags in the same process keeps vLLM's behaviour."""

    structured_output_manager: Any
    requests: dict[str, Any]
    running: list[Any]

    @cached_property
    def constrained_k2_totals(self) -> Collected:
        """The totals that this scheduler has taken."""
        return Collected()

    def get_grammar_bitmask(self, scheduler_output: Any) -> Any:
        """Add the rows that the workers look at to a step's masks."""
        masks = super().get_grammar_bitmask(scheduler_output)  # type: ignore[misc]
        manager = self.structured_output_manager
        if masks is not None and isinstance(manager, ConstrainedOutputManager):
            ids, drafts = masks.structured_output_request_ids, scheduler_output.scheduled_spec_decode_tokens
            masks.structured_output_request_ids = manager.planned_ids(self.requests, ids, drafts)
        return masks

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Take the totals that came with a worker's output."""
        row_probe.count()  # of a worker in this process
        declining.count()
        totals = model_runner_output.__dict__.get(FIELD)
        if totals is not None:
            self.constrained_k2_totals.take(totals)
        return super().update_from_output(scheduler_output, model_runner_output, *args, **kwargs)  # type: ignore[misc]

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        """Add the counts made since the last report."""
        stats = super().make_stats(*args, **kwargs)  # type: ignore[misc]
        if stats is not None:
            setattr(stats, FIELD, self.constrained_k2_totals.delta(is_idle=not self.running))
        return stats

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        manager = self.structured_output_manager
        if isinstance(manager, ConstrainedOutputManager):
            manager.end(request)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]


@cache
def constraining(scheduler: type) -> type:
    """A scheduler's class with :class:`ConstrainingScheduler` in front."""
    return type(f"Constraining{scheduler.__name__}", (ConstrainingScheduler, scheduler), {})
