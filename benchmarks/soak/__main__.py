"""Send a mixed load to a real server by each route: constrained, plain, aborted, too costly and hostile requests.

Checks that constrained calls are valid, other answers do not change, and memory stays flat. Exit code 1 if not.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.ranks.topologies import ONE_RANK, TOPOLOGIES
from benchmarks.soak.adapter import lora_flags, write_adapter
from benchmarks.soak.load import ADAPTER, MODEL, mixed_load
from benchmarks.soak.report import Place, measure
from benchmarks.soak.routes import ROUTES
from constrained_k2.testing import build_model


def main() -> int:
    """Send the load, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--route", choices=ROUTES, action="append", help="only this route; repeatable")
    parser.add_argument("--requests", type=int, default=500, help="(default: %(default)s)")
    parser.add_argument("--concurrency", type=int, default=32, help="requests at a time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--topology", choices=TOPOLOGIES, default=ONE_RANK, help="(default: %(default)s)")
    parser.add_argument(
        "--arch",
        choices=("kimi_k2", "llama"),
        default="kimi_k2",
        help="on a CPU only llama has prefix caching and LoRA",
    )
    parser.add_argument("--cache-blocks", type=int, help="blocks of the KV cache: with few, vLLM preempts requests")
    parser.add_argument(
        "--lora",
        action="store_true",
        help="send every second round of kinds to a LoRA adapter; unconstrained answers are not compared, because with "
        "LoRA they depend on the batch in vLLM alone too",
    )
    options = parser.parse_args()
    if options.lora and options.arch != "llama":
        parser.error("--lora needs --arch llama")
    if TOPOLOGIES[options.topology].is_dense and options.arch != "llama":
        parser.error(f"--topology {options.topology!r} needs --arch llama")
    with tempfile.TemporaryDirectory() as directory:
        models = (MODEL, ADAPTER) if options.lora else (MODEL,)
        loads = list(mixed_load(options.requests, options.seed, models))
        model = build_model(Path(directory) / "model", arch=options.arch)
        flags = [f"--num-gpu-blocks-override={options.cache_blocks}"] if options.cache_blocks else []
        if options.lora:
            loads = [replace(load, expect="served") if load.expect == "same" else load for load in loads]
            flags += lora_flags(write_adapter(Path(directory) / ADAPTER, model))
        place = Place(TOPOLOGIES[options.topology], tuple(flags))
        routes = {route: ROUTES[route] for route in options.route or ROUTES}
        results = measure(model, routes, loads, Path(directory), place=place, concurrency=options.concurrency)
    return int(not all(result.is_good for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
