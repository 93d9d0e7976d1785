"""Patches of the engine core: the intake of requests, and the scheduler."""

from typing import Any

from constrained_k2.vllm_plugin.engine_core.scheduler import constraining
from constrained_k2.vllm_plugin.engine_core.structured_output import ConstrainedOutputManager
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
