"""Count the bytes that each step copies to the device, over whole turns of many requests in calls (about 2 minutes).

No device is needed: what would be copied to one is copied within host memory. Exit code 1 if the median of a step with
256 requests exceeds 64 KB once the masks have been seen.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.arguments import add_shared

LIMIT = 64 << 10
"""The most bytes of the median step of 256 requests."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.uploads", description=__doc__)
    add_shared(parser)
    parser.add_argument("--output", type=Path, default=Path("bench_output"), help="folder for a small tokenizer")
    parser.add_argument("--rows", type=int, default=256, help="requests in calls (default: %(default)s)")
    parser.add_argument("--tools", type=int, default=64, help="tools of each request (default: %(default)s)")
    options = parser.parse_args(arguments)

    from benchmarks.host.workload import load
    from benchmarks.uploads.run import count

    workload = load(options.shared, options.output / "tokenizer")
    found = count(workload, rows=options.rows, tools=options.tools)
    print(f"{workload.source}\n{options.rows} requests with {options.tools} tools each; bytes a step\n")
    print("masks         | steps | median | p99 | median if computed masks are copied | listed | kept | copied rows")
    print("--------------|------:|-------:|----:|-----------------------------------:|-------:|-----:|-----------:")
    for name, steps in found.items():
        print(f"{name:13} | {steps.row()}")
    return int(options.rows == 256 and found["seen before"].median > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
