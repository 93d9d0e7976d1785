"""Measure what constraining costs on the host: time to first mask, cost of steps and batches, memory.

One process and no model: this package's matcher, xgrammar's kimi structural tag compiled as vLLM compiles it, and
LLGuidance's grammar of the whole turn, on the same tools and turns. Exit code 1 if a promised figure is missed.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.arguments import SMALL, add_shared


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables of docs/performance.md, and write figures.json and the plots."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.host",
        description=__doc__,
        epilog="example: %(prog)s --output bench_output    (about 18 minutes on two idle cores, most of it xgrammar's "
        "compilation). Kernels and engines on a GPU: python -m benchmarks.gpu --help",
    )
    add_shared(parser, SMALL)
    parser.add_argument("--output", type=Path, default=Path("bench_output"), help="folder for figures.json and plots")
    parser.add_argument("--threads", type=int, help="threads for a batch's masks (default: one a core, at most 8)")
    parser.add_argument("--quick", action="store_true", help="a smoke test: the figures mean little")
    parser.add_argument("--skip-slow", action="store_true", help="xgrammar only for lists of up to 16 tools")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(arguments)
    if options.output.is_file():
        parser.error(f"--output: {options.output} is a file: name a folder")

    from benchmarks.host.plots import write_plots
    from benchmarks.host.report import promises, tables
    from benchmarks.host.run import QUICK, Plan, measure
    from benchmarks.host.workload import load

    options.output.mkdir(parents=True, exist_ok=True)
    plan = QUICK if options.quick else Plan()
    if options.skip_slow:
        plan = replace(plan, slow_sizes=16)
    workload = load(options.shared, options.output / "tokenizer")
    figures = measure(workload, plan, lambda text: print(text, "…", file=sys.stderr), options.threads)
    figures.promises = promises(figures)
    written = json.dumps(figures.to_json(), indent=1)
    (options.output / "figures.json").write_text(written + "\n")
    plots = write_plots(figures, options.output)
    print(written if options.json else tables(figures))
    print(f"{options.output / 'figures.json'}, {', '.join(map(str, plots))}", file=sys.stderr)
    return int(not all(holds for _, _, holds in figures.promises) and not options.quick)


if __name__ == "__main__":
    sys.exit(main())
