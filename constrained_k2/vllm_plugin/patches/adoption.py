"""Requests in the engine core: as they arrive from any front end, and as they end."""

from typing import Any

from constrained_k2.vllm_plugin.engine_core.structured_output import ConstrainedOutputManager
from constrained_k2.vllm_plugin.patches import wrapper


@wrapper
def preprocess_add_request(original: Any, self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Prepare a request for its route: check or adopt one that no front end of ours has tagged."""
    manager = self.structured_output_manager
    if isinstance(manager, ConstrainedOutputManager) and manager.intake is not None:
        manager.intake.take(request)
    return original(self, request, *args, **kwargs)


@wrapper
def free_request(original: Any, self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Hand on what was examined of a finished request, or count the calls of one that was not constrained."""
    manager = self.structured_output_manager
    if isinstance(manager, ConstrainedOutputManager) and manager.intake is not None:
        manager.intake.end(request)
    return original(self, request, *args, **kwargs)
