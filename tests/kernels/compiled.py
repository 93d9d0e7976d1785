"""Compiles the kernel for an H100, without a GPU; run by test_apply_masks.py. Prints a line for each variant."""

import re
import subprocess
from pathlib import Path
from tempfile import NamedTemporaryFile

import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from constrained_k2.kernels import MAX_IDS, PLAN_COLUMNS, triton_kernel
from constrained_k2.kernels.plan import BLOCK

CONSTANTS = {"COLUMNS": PLAN_COLUMNS, "BLOCK": BLOCK, "BLOCKS": 64, "MAX_IDS": MAX_IDS}
POINTERS = {"masks", "plan", "ids", "counters"}
FLOATS = {"partials", "results"}


def compiled(dtype: str, *, watched: bool) -> bytes:
    """The machine code of a variant."""
    kernel = triton_kernel._apply_masks_kernel
    constants = CONSTANTS | {"WATCHED": watched}
    signature = {
        name: "constexpr"
        if name in constants
        else f"*{dtype}"
        if name == "logits"
        else "*i32"
        if name in POINTERS
        else "*fp32"
        if name in FLOATS
        else "i32"
        for name in kernel.arg_names
    }
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(name),): value for name, value in constants.items()})
    code: bytes = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
    return code


def main() -> None:
    """Compile every variant; raises if one spills registers."""
    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    for dtype in ("fp32", "bf16", "fp16"):
        for watched in (False, True):
            with NamedTemporaryFile(suffix=".cubin") as file:
                file.write(compiled(dtype, watched=watched))
                file.flush()
                usage = subprocess.check_output([tool, "--dump-resource-usage", file.name], text=True)
            found = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", usage)}
            assert found["STACK"] == found["LOCAL"] == 0, usage
            print(dtype, watched, found["REG"])


if __name__ == "__main__":
    main()
