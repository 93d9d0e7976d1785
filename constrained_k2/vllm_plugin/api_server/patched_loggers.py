"""Patches of vLLM's stat logger: show the engines' counters in ``/metrics``.

The counters arrive by :mod:`constrained_k2.vllm_plugin.shared.transport`.
"""

from typing import Any

from constrained_k2.vllm_plugin.api_server import families
from constrained_k2.vllm_plugin.shared.transport import FIELD
from constrained_k2.vllm_plugin.start.patch import wrapper


@wrapper
def stat_logger_init(original: Any, self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
    """Expose every metric of a server at 0."""
    original(self, vllm_config, *args, **kwargs)
    families.expose(vllm_config.model_config.served_model_name, self.engine_indexes)


@wrapper
def stat_logger_record(
    original: Any, self: Any, scheduler_stats: Any, *args: Any, engine_idx: int = 0, **kwargs: Any
) -> None:
    """Record what an engine has counted."""
    original(self, scheduler_stats, *args, engine_idx=engine_idx, **kwargs)
    delta = getattr(scheduler_stats, FIELD, None)
    if delta is not None:
        families.record_engine(delta, self.vllm_config.model_config.served_model_name, engine_idx)
