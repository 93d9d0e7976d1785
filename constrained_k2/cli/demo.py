"""Compares a small model unconstrained, constrained, and under vLLM's strict level.

Serves the model with vLLM on loopback, sends it requests, compares the answers and writes a report: `constrained-k2 ab
--serve`, with the same exit codes. The package holds neither the model nor the requests: scripts/demo.sh in a clone of
the repository writes both into --output, and then runs this.

example: constrained-k2 demo --output demo_output
"""

import argparse
from pathlib import Path

from constrained_k2.cli import ab
from constrained_k2.cli.reading import WIRE_FORMATS, natural
from constrained_k2.errors import InvalidRequest

MODEL, SAMPLES = "model", "samples.jsonl"
"""Names of the checkpoint's directory and of the requests' file, in the output's directory."""

_LIMITS = ("--max-tokens=400", "--concurrency=48")  # the longest right answer has some 300 tokens


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    add("--format", choices=WIRE_FORMATS, default="kimi-k2", help="wire format of the model (default: %(default)s)")
    add("--output", type=Path, default=Path("demo_output"), help="directory of model, requests, logs and the report")
    add("--seed", type=int, default=0, help="seeds the sampling")
    add("--temperature", type=float, default=0.7, help="(default: %(default)s)")
    add("--explained", type=natural, default=300, metavar="N", help="asked again for what the constraint changed")


def run(options: argparse.Namespace) -> int:
    """Run the demo; 1 if there are findings."""
    model, samples = options.output / MODEL, options.output / SAMPLES
    for path in (model, samples):
        if not path.exists():
            remedy = "Run scripts/demo.sh in a clone of the repository, which makes it"
            raise InvalidRequest(f"there is no {path}, and the package does not hold it", "--output", remedy)
    parser = argparse.ArgumentParser()
    ab.add_arguments(parser)
    passed = ("format", "output", "seed", "temperature", "explained")
    arguments = [f"--{name}={getattr(options, name)}" for name in passed]
    arguments += [f"--serve={model}", f"--samples={samples}", *_LIMITS]
    return ab.run(parser.parse_args(arguments))
