"""``constrained-k2 bench``: what constraining costs on the host, ours and the engines' own grammars side by side."""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from constrained_k2.errors import InvalidRequest


def add_parser(verbs: Any) -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "bench",
        help="time to first mask, cost of steps and batches, memory: ours, xgrammar's tag and LLGuidance's grammar",
        description="One process, one run, no model: the split matcher, xgrammar's kimi structural tag compiled as "
        "vLLM does it, and LLGuidance's grammar of the whole turn, on the same tools and turns. Exit code 1 if "
        "something that must hold does not.",
        epilog="example: constrained-k2 bench --shared ../shared --output bench_output    (some fifteen minutes on two "
        "quiet cores, most of it xgrammar compiling)",
    )
    parser.add_argument(
        "--shared",
        type=Path,
        default=Path("../shared"),
        help="where the real vocabulary and public tools lie (default: %(default)s); without them a small vocabulary "
        "and the package's own tools are used",
    )
    parser.add_argument("--output", type=Path, default=Path("bench_output"), help="takes figures.json and the plots")
    parser.add_argument("--threads", type=int, help="for the masks of a batch (default: as many as there are, up to 8)")
    parser.add_argument(
        "--quick", action="store_true", help="only see that everything runs; what is found means little"
    )
    parser.add_argument("--skip-slow", action="store_true", help="lists of more than 16 tools without xgrammar")
    parser.add_argument("--json", action="store_true", help="print the JSON instead of the tables")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure and print; 1 if a promise is not kept."""
    from constrained_k2.evaluation.bench.plots import write_plots
    from constrained_k2.evaluation.bench.report import promises, tables
    from constrained_k2.evaluation.bench.run import QUICK, Plan, measure
    from constrained_k2.evaluation.bench.workload import load

    if options.output.is_file():
        raise InvalidRequest("is a file", str(options.output), "Name a folder")
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
