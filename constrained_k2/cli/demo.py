"""Compares a small trained Kimi-shaped model unconstrained, constrained, and under vLLM's strict level.

Serves a small trained model of Kimi K2's shape with vLLM on loopback, sends it held-out requests, compares the answers,
and writes a report: `constrained-k2 ab` without a server, with the same exit codes. --format chooses whether the model
speaks Kimi K2's wire format or Kimi K3's.

example: constrained-k2 demo --requests 60
"""

import argparse
from pathlib import Path

from constrained_k2.cli import ab
from constrained_k2.cli.reading import WIRE_FORMATS, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    add("--requests", type=positive, default=300, metavar="N", help="requests an arm (default: %(default)s)")
    add("--format", choices=WIRE_FORMATS, default="kimi-k2", help="wire format of the model (default: %(default)s)")
    add("--output", type=Path, default=Path("demo_output"), help="directory of records, logs and the report")
    add("--seed", type=int, default=0, help="chooses the requests and seeds the sampling")


def run(options: argparse.Namespace) -> int:
    """Run the demo; 1 if there are findings."""
    parser = argparse.ArgumentParser()
    ab.add_arguments(parser)
    arguments = [f"--count={options.requests}", f"--output={options.output}", f"--seed={options.seed}"]
    return ab.run(parser.parse_args([*arguments, f"--format={options.format}"]))
