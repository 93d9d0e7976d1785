"""Compiles the kernel for an H100, without a GPU; run by test_kernels.py. Prints a line for each variant."""

import re
import subprocess
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from constrained_k2.kernels import MAX_IDS, PLAN_COLUMNS, triton_declining, triton_kernel
from constrained_k2.kernels.plan import BLOCK

CONSTANTS = {"COLUMNS": PLAN_COLUMNS, "BLOCK": BLOCK, "BLOCKS": 64, "MAX_IDS": MAX_IDS, "IDS": 1024}
TYPES = {
    "masks": "*i32", "plan": "*i32", "ids": "*i32", "counters": "*i32", "rows": "*i64", "threshold": "fp32",
} | dict.fromkeys(("partials", "results", "chances"), "*fp32")  # fmt: skip
DECLINING = (triton_declining._blocks_kernel, triton_declining._rows_kernel, triton_declining._decline_kernel)


def compiled(kernel: Any, dtype: str, **more: bool) -> bytes:
    """The machine code of a variant of a kernel."""
    constants = {name: value for name, value in (CONSTANTS | more).items() if name in kernel.arg_names}
    types = TYPES | {"logits": f"*{dtype}"} | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(name),): value for name, value in constants.items()})
    code: bytes = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
    return code


def main() -> None:
    """Compile every variant; raises if one spills registers."""
    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    for dtype in ("fp32", "bf16", "fp16"):
        masking = [compiled(triton_kernel._apply_masks_kernel, dtype, WATCHED=watched) for watched in (False, True)]
        for code in (*masking, *(compiled(kernel, dtype) for kernel in DECLINING)):
            with NamedTemporaryFile(suffix=".cubin") as file:
                file.write(code)
                file.flush()
                usage = subprocess.check_output([tool, "--dump-resource-usage", file.name], text=True)
            found = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", usage)}
            assert found["STACK"] == found["LOCAL"] == 0, usage
            print(dtype, found["REG"])


if __name__ == "__main__":
    main()
