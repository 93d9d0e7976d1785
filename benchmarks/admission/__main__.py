"""Measure what it costs the API server to admit requests with tools that it has not seen before (a minute).

No engine and no model: the request hook, the schemas' check and the sampling parameters, as the server runs them. The
second arm compiles every schema, also those that are admitted by their shape. The longest pause of another coroutine
is measured while a request is admitted, and then as long while none is. Exit code 1 if a promised figure is missed.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from benchmarks.arguments import add_shared
from benchmarks.host.timing import Times
from scripts.bundled_samples.ordinary import TOOLS

_HEADER = """\
| new tools | CPU, ms p50 / p99 | on the event loop, ms | pause of others, ms | none admitted, ms | vLLM reads, ms |
|---|--:|--:|--:|--:|--:|"""
_MAX_CPU, _MAX_ONE_TOOL, _MAX_DELAY = 100.0, 5.0, 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for each arm."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admission", description=__doc__)
    add_shared(parser)
    parser.add_argument("--repeats", type=int, default=9, help="requests of each size (default: %(default)s)")
    parser.add_argument(
        "--pauses", type=int, default=200, help="requests beside which pauses are measured (%(default)s)"
    )
    parser.add_argument("--sizes", type=int, nargs="+", help="tools in a request (default: 1 16 64 258)")
    parser.add_argument("--skip-compiled", action="store_true", help="leave out the arm that compiles every schema")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(arguments)

    from benchmarks.admission.run import SIZES, compiling_all, measure

    file = options.shared / "schemas" / "mcp-tools" / "livemcp_dev.jsonl"
    tools = list(TOOLS)
    if file.is_file():
        tools = [tool for line in file.read_text("utf-8").splitlines() for tool in json.loads(line)["tools"]]
    sizes = options.sizes or SIZES
    found = {"as served": measure(tools, sizes, options.repeats, options.pauses, "by shape")}
    if not options.skip_compiled:
        with compiling_all():
            found["every schema compiled"] = measure(
                tools, sizes, options.repeats, min(options.repeats, options.pauses), "compiled"
            )
    if options.json:
        print(json.dumps({name: figures.to_json() for name, figures in found.items()}))
    else:
        for name, figures in found.items():
            print(f"{name} ({len(tools)} tools; one of them alone: {_pair(figures.one_tool)} ms of CPU)\n\n{_HEADER}")
            for row in figures.requests:
                print(
                    f"| {row.tools} | {_pair(row.cpu)} | {row.on_loop.p50:.2f} | {_pair(row.delay)} "
                    f"| {_pair(row.control)} | {row.reading.p50:.2f} |"
                )
            print()
    served = found["as served"]
    last = served.requests[-1]
    delay = max(_MAX_DELAY, last.control.p99)  # a machine that pauses longer by itself shows nothing
    return int(last.cpu.p50 > _MAX_CPU or served.one_tool.p99 > _MAX_ONE_TOOL or last.delay.p99 > delay)


def _pair(times: Times) -> str:
    return f"{times.p50:.2f} / {times.p99:.2f}"


if __name__ == "__main__":
    sys.exit(main())
