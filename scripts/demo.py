"""Compare a small trained model on vLLM servers of this machine: unconstrained, constrained, and vLLM's strict level.

Writes the model and held-out requests into --output, then runs `constrained-k2 demo` there; the same command resumes.

example: scripts/demo.sh --requests 60
"""

import argparse
import json
import sys
from pathlib import Path

from constrained_k2.cli import main as run_verb
from constrained_k2.cli.demo import MODEL, SAMPLES
from constrained_k2.cli.reading import WIRE_FORMATS, positive
from scripts.demo_model.shipped import DEMO_MODELS, build_demo_model, demo_bodies


def main() -> int:
    """Write what is compared, and compare it; return the verb's exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=positive, default=300, metavar="N", help="an arm (default: %(default)s)")
    parser.add_argument("--format", choices=WIRE_FORMATS, default="kimi-k2", help="(default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("demo_output"), help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="chooses the requests and seeds the sampling")
    options = parser.parse_args()
    wire_format = WIRE_FORMATS[options.format]
    name = next(name for name, model in DEMO_MODELS.items() if model.wire_format == wire_format)
    build_demo_model(options.output / MODEL, name)
    lines = (json.dumps(body) + "\n" for body in demo_bodies(options.requests, options.seed, name))
    (options.output / SAMPLES).write_text("".join(lines), "utf-8")
    return run_verb(["demo", f"--format={options.format}", f"--output={options.output}", f"--seed={options.seed}"])


if __name__ == "__main__":
    sys.exit(main())
