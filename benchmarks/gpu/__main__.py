"""Check and time the kernels on an NVIDIA GPU, and count and time what a step copies to it.

Prints Markdown: the machine, what was checked, and the tables. Exit code 1 if something is wrong (a kernel that differs
from the reference), 2 if there is no GPU. With --interpret, the kernels run in Triton's interpreter on small shapes,
and the uploads are made in host memory: a check, without times.
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence

from benchmarks.report import Report

_COMPARED, _INTERPRETED = 105, 300  # seconds for the comparison with the reference, on a GPU and without


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; repeatable")
    parser.add_argument("--interpret", action="store_true", help="Triton's interpreter and small shapes, without a GPU")
    options = parser.parse_args(arguments)
    if options.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are defined
    elif problem := gpu_problem():
        print(f"{parser.prog}: no GPU: {problem}.", file=sys.stderr)
        print("Nothing was measured. --interpret checks the kernels without a GPU.", file=sys.stderr)
        return 2
    report = Report()
    from torch.utils.collect_env import get_pretty_env_info

    report.say(f"```\n{get_pretty_env_info()}\n```\n")
    for name in options.part or PARTS:
        report.say(f"## {name}\n")
        try:
            PARTS[name](report, options)
        except Exception as error:  # noqa: BLE001 - the other part may run
            traceback.print_exc()
            report.check(f"{name}: the part ran to its end", passed=False, note=repr(error))
    return int(bool(report.failed))


def _kernels(report: Report, options: argparse.Namespace) -> None:
    from benchmarks.gpu import kernels

    if options.interpret:
        from benchmarks.gpu.interpreter import accept_combined_masks

        accept_combined_masks()
        kernels.check_launches(report, kernels.SMALL_ROWS, kernels.SMALL_WIDTHS, "cpu", time.monotonic() + _INTERPRETED)
        kernels.check_declining(report, kernels.SMALL_ROWS, kernels.SMALL_WIDTHS, "cpu")
        return
    kernels.check_launches(report, kernels.ROWS, kernels.WIDTHS, "cuda", time.monotonic() + _COMPARED)
    kernels.check_declining(report, (1, 32), kernels.WIDTHS, "cuda")
    kernels.check_graphs(report)
    from benchmarks.gpu import times

    times.measure(report)


def _uploads(report: Report, options: argparse.Namespace) -> None:
    from benchmarks.uploads import measure

    if options.interpret:
        measure(report, rows=8, tools=4, steps=30)
    else:
        measure(report, device="cuda")


PARTS: Mapping[str, Callable[[Report, argparse.Namespace], None]] = {"kernels": _kernels, "uploads": _uploads}


def gpu_problem() -> str:
    """Return why there is no usable NVIDIA GPU, and what to do; empty if there is one."""
    try:
        import torch
    except ModuleNotFoundError:
        return "torch is not installed. Install it with CUDA (https://pytorch.org/get-started), then run this again"
    if torch.version.cuda is None:
        return "this torch was built without CUDA. Install a CUDA build (https://pytorch.org/get-started)"
    if not torch.cuda.is_available():
        return "torch finds no NVIDIA GPU. Check that nvidia-smi lists one, and CUDA_VISIBLE_DEVICES"
    return ""


if __name__ == "__main__":
    sys.exit(main())
