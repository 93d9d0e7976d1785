"""``constrained-k2 demo``: the A/B on a small trained model and real vLLM servers of this machine, and its report."""

import argparse
from pathlib import Path
from typing import Any

from constrained_k2.cli import ab
from constrained_k2.cli.reading import positive


def add_parser(verbs: Any) -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "demo",
        help="a small trained Kimi-shaped model on real vLLM servers: unconstrained, constrained, vLLM's strict level",
        description="Serves a small trained model of Kimi K2's shape with vLLM on loopback, sends it requests that it "
        "has never seen, compares the answers, and writes a report: `constrained-k2 ab` without a server. Exit "
        "codes as there.",
        epilog="example: constrained-k2 demo --requests 60",
    )
    parser.add_argument(
        "--requests", type=positive, default=300, metavar="N", help="requests an arm (default: %(default)s)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("demo_output"), help="where records, logs and the report go"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the requests and the sampling")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the demo; 1 if something is found wrong."""
    parser = argparse.ArgumentParser()
    ab.add_parser(parser.add_subparsers())
    arguments = ["ab", f"--count={options.requests}", f"--output={options.output}", f"--seed={options.seed}"]
    return ab.run(parser.parse_args(arguments))
