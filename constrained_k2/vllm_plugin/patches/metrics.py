"""Counts on their way from the workers to Prometheus (:mod:`constrained_k2.vllm_plugin.metrics.transport`)."""

from dataclasses import dataclass, fields
from typing import Any

from vllm.v1.metrics.stats import SchedulerStats

from constrained_k2.vllm_plugin.matching.declining import declining
from constrained_k2.vllm_plugin.metrics.row_probe import row_probe
from constrained_k2.vllm_plugin.metrics.transport import FIELD, NewTotals
from constrained_k2.vllm_plugin.patches import wrapper


@dataclass
class _Field:
    constrained_k2: dict[str, Any] | None = None


def stats_fields(original: Any) -> Any:
    """Give ``SchedulerStats`` a field that its constructor does not take."""
    setattr(SchedulerStats, FIELD, None)  # what instances have that vLLM's __init__ makes
    SchedulerStats.__annotations__[FIELD] = _Field.__annotations__[FIELD]  # its type, for msgspec
    return {**original, FIELD: fields(_Field)[0]}


def model_runner_output_getstate(original: Any) -> Any:
    """Add this process's totals, if there are new ones, to a pickled output."""
    new = NewTotals()

    def getstate(self: Any) -> Any:
        state = original(self)
        row_probe.count()
        declining.count()
        totals = new.take()
        return state if totals is None else {**state, FIELD: totals}

    return getstate


@wrapper
def stat_logger_init(original: Any, self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
    """Expose every metric of a server at 0."""
    from constrained_k2.vllm_plugin.metrics import families  # only where metrics are shown

    original(self, vllm_config, *args, **kwargs)
    families.expose(vllm_config.model_config.served_model_name, self.engine_indexes)


@wrapper
def stat_logger_record(
    original: Any, self: Any, scheduler_stats: Any, *args: Any, engine_idx: int = 0, **kwargs: Any
) -> None:
    """Record what an engine has counted."""
    original(self, scheduler_stats, *args, engine_idx=engine_idx, **kwargs)
    news = getattr(scheduler_stats, FIELD, None)
    if news is not None:
        from constrained_k2.vllm_plugin.metrics import families

        families.record_engine(news, self.vllm_config.model_config.served_model_name, engine_idx)
