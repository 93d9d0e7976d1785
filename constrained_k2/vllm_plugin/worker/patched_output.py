"""Patch of the model runner's output: a worker's totals travel to the engine core with it."""

from typing import Any

from constrained_k2.vllm_plugin.shared.declining import declining
from constrained_k2.vllm_plugin.shared.row_probe import row_probe
from constrained_k2.vllm_plugin.shared.transport import FIELD, NewTotals


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
