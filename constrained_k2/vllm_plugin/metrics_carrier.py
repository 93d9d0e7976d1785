"""How the counters of the processes that mask reach the process that shows them: on what vLLM sends every step anyway.

* A worker that is another process than the engine core (tensor or pipeline parallelism) pickles a ``ModelRunnerOutput``
  a step, in the one rank whose output is used: its totals go along.
* The engine core sends the front-end ``SchedulerStats``: what is new of all totals goes along, to one front-end of
  several, as all of these statistics do.
* The front-end's ``PrometheusStatLogger`` records them, and with them ours.

Nothing is added where nothing has been counted. With ``--disable-log-stats`` nothing is sent, as of vLLM's own.
"""

import dataclasses
from functools import wraps
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import ModelRunnerOutput

from constrained_k2.counters import Published, engine_counters
from constrained_k2.vllm_plugin import metrics

_FIELD = "constrained_k2"
"""The attribute of ours on vLLM's objects; on a class, the mark that it has been prepared."""


def install() -> None:
    """Prepare vLLM's classes in this process. To be called before it encodes or decodes its first statistics."""
    if hasattr(Scheduler, _FIELD):
        return
    setattr(Scheduler, _FIELD, None)
    _let_outputs_carry_totals()
    _let_stats_carry_news()
    _collect_in_scheduler()
    _record_in_front_end()


def _let_outputs_carry_totals() -> None:
    sent = 0  # the age of the totals that went along last

    def getstate(self: Any) -> dict[str, Any]:
        nonlocal sent
        if engine_counters.age == sent:
            state: dict[str, Any] = self.__dict__
            return state
        sent = engine_counters.age
        return {**self.__dict__, _FIELD: engine_counters.snapshot()}

    ModelRunnerOutput.__getstate__ = getstate


def _let_stats_carry_news() -> None:
    """Give ``SchedulerStats`` a field. Making the dataclass anew would leave behind the names bound to it elsewhere."""

    @dataclasses.dataclass
    class Carrier:
        constrained_k2: dict[str, Any] | None = None

    SchedulerStats.__dataclass_fields__[_FIELD] = Carrier.__dataclass_fields__[_FIELD]
    SchedulerStats.__annotations__[_FIELD] = Carrier.__annotations__[_FIELD]
    setattr(SchedulerStats, _FIELD, None)  # the value of instances that vLLM's own __init__ makes


def _collect_in_scheduler() -> None:
    update_from_output, make_stats = Scheduler.update_from_output, Scheduler.make_stats

    @wraps(update_from_output)
    def update(self: Any, scheduler_output: Any, model_runner_output: Any, *args: Any, **kwargs: Any) -> Any:
        totals = model_runner_output.__dict__.get(_FIELD)
        if totals is not None:
            _collected(self).take(totals)
        return update_from_output(self, scheduler_output, model_runner_output, *args, **kwargs)

    @wraps(make_stats)
    def stats_with_news(self: Any, *args: Any, **kwargs: Any) -> Any:
        stats = make_stats(self, *args, **kwargs)
        if stats is not None and (getattr(self, _FIELD) is not None or engine_counters.age):
            setattr(stats, _FIELD, _collected(self).news())
        return stats

    Scheduler.update_from_output = update
    Scheduler.make_stats = stats_with_news


class _Collected:
    """What one scheduler knows of the totals."""

    def __init__(self) -> None:
        self._published = Published()
        self._workers: dict[str, dict[str, Any]] = {}  # the totals of each process that came since the last time
        self._age = 0  # of this process's own totals at that time

    def take(self, totals: dict[str, Any]) -> None:
        """Note the totals that came with a worker's output."""
        if totals["source"] != engine_counters.source:  # else it was pickled within this process
            self._workers[totals["source"]] = totals

    def news(self) -> dict[str, Any] | None:
        """What is new since the last time, in this process and in the workers."""
        age, workers = engine_counters.age, self._workers
        if age == self._age and not workers:
            return None
        self._age, self._workers = age, {}
        return self._published.news([engine_counters.snapshot(), *workers.values()])


def _collected(scheduler: Any) -> _Collected:
    collected: _Collected | None = getattr(scheduler, _FIELD)
    if collected is None:
        collected = _Collected()
        setattr(scheduler, _FIELD, collected)
    return collected


def _record_in_front_end() -> None:
    set_up, record = PrometheusStatLogger.__init__, PrometheusStatLogger.record

    @wraps(set_up)
    def init(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        set_up(self, vllm_config, *args, **kwargs)
        metrics.expose(vllm_config.model_config.served_model_name, self.engine_indexes)

    @wraps(record)
    def with_ours(self: Any, scheduler_stats: Any, *args: Any, engine_idx: int = 0, **kwargs: Any) -> None:
        record(self, scheduler_stats, *args, engine_idx=engine_idx, **kwargs)
        news = getattr(scheduler_stats, _FIELD, None)
        if news is not None:
            metrics.record_engine(news, self.vllm_config.model_config.served_model_name, engine_idx)

    PrometheusStatLogger.__init__ = init
    PrometheusStatLogger.record = with_ours
