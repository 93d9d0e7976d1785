"""vLLM in the tests' own process, replaced as in a server with our flags whose processes are one."""

from typing import get_args

from constrained_k2.vllm_plugin import register
from constrained_k2.vllm_plugin.start.apply import activate
from constrained_k2.vllm_plugin.start.patch import Process


def patch_vllm() -> None:
    """May be called more than once, as vLLM calls a plugin's function."""
    register()
    for process in get_args(Process):
        activate(process)
