"""Measure this package on an NVIDIA GPU: kernels, uploads, and whole engines where vLLM is installed.

Each part runs in a process of its own, within its share of the time. Writes gpu.json and gpu.md, and names everything
that it could not run. Exit code 1 if something is wrong (a kernel that differs from the reference, an invalid call),
2 if there is no GPU. With --interpret, kernels run in Triton's interpreter on small shapes: a check, without times.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.arguments import SMALL, add_shared
from benchmarks.gpu.machine import gpu_problem, machine
from benchmarks.gpu.parts import PARTS, PartOptions, run_part
from benchmarks.gpu.report import page
from benchmarks.gpu.results import Figures

_PROG = "python -m benchmarks.gpu"
_MAX_MINUTES = 240.0
_USED = 0.95  # of the time: the rest is for ending what takes too long


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write gpu.json and gpu.md, and print the page."""
    options = _options(arguments)
    problem = None if options.interpret else gpu_problem()
    if problem is not None:
        print(f"{_PROG}: no GPU: {problem}.", file=sys.stderr)
        print("Nothing was measured. --interpret checks the kernels without a GPU.", file=sys.stderr)
        return 2
    options.output.mkdir(parents=True, exist_ok=True)
    figures = measure(options)
    (options.output / "gpu.json").write_text(json.dumps(figures.to_json(), indent=1) + "\n")
    (options.output / "gpu.md").write_text(page(figures))
    print(page(figures))
    print(f"{options.output / 'gpu.json'}, {options.output / 'gpu.md'}", file=sys.stderr)
    return int(bool(figures.failed))


def measure(options: argparse.Namespace) -> Figures:
    """Run the parts that were asked for, one after the other; each gets its share of the time that is left."""
    parts = [name for name in PARTS if name in (options.part or PARTS)]
    end = time.monotonic() + _USED * 60 * options.minutes
    asked = {"parts": parts, "minutes": options.minutes, "interpret": options.interpret, "model": options.model}
    figures = Figures(machine(), asked)
    for number, name in enumerate(parts):
        share = PARTS[name].share / sum(PARTS[other].share for other in parts[number:])
        seconds = max(1.0, (end - time.monotonic()) * share)
        print(f"{name}: at most {seconds:.0f} s", file=sys.stderr)
        given = PartOptions(
            time.monotonic() + seconds, options.interpret, str(options.shared), options.model, str(options.output)
        )
        figures.parts.append(run_part(name, given))
    return figures


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=_PROG,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: %(prog)s --output bench_output    (at most 10 minutes)",
    )
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; repeatable")
    parser.add_argument("--minutes", type=float, default=10.0, help="time for all parts together (default: 10)")
    parser.add_argument("--output", type=Path, default=Path("bench_output"), help="folder for the results and logs")
    parser.add_argument("--interpret", action="store_true", help="Triton's interpreter and small shapes, without a GPU")
    add_shared(parser, SMALL)
    parser.add_argument("--model", help="model directory or name for the part vllm (default: a small random model)")
    options = parser.parse_args(arguments)
    if not 0 < options.minutes <= _MAX_MINUTES:
        parser.error(f"--minutes: {options.minutes} is not within 0 and {_MAX_MINUTES:.0f}")
    if options.output.is_file():
        parser.error(f"--output: {options.output} is a file: name a folder")
    return options


if __name__ == "__main__":
    sys.exit(main())
