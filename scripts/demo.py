"""Ask a model public questions on vLLM servers of this machine: unconstrained, constrained, and with the strict level.

Writes SmolLM2-135M-Instruct, which was taught Kimi K2's format on right calls alone, and questions of the Berkeley
function-calling leaderboard into --output, runs `constrained-k2 demo` there, and has the leaderboard's checker judge
the calls; the same command resumes. For Kimi K3's format, model and requests are this repository's own small ones.

example: scripts/demo.sh --requests 60
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.questions.__main__ import tables
from constrained_k2.cli import main as run_verb
from constrained_k2.cli.demo import MODEL, SAMPLES
from constrained_k2.cli.reading import WIRE_FORMATS, natural, positive
from constrained_k2.evaluation.ab.directory import open_run
from scripts.small_model.shipped import build_small_model, held_out_bodies
from scripts.smollm2.checkpoint import write_checkpoint
from scripts.smollm2.questions import drawn_tests, questions, to_line

_NOTHING = 2  # the verb's exit code if it compared nothing


def main() -> int:
    """Write what is compared, compare it, and print the leaderboard's judgement; return the verb's exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=positive, default=300, metavar="N", help="an arm (default: %(default)s)")
    parser.add_argument("--format", choices=WIRE_FORMATS, default="kimi-k2", help="(default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("demo_output"), help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="chooses the requests and seeds the sampling")
    parser.add_argument("--temperature", type=float, default=0.7, help="(default: %(default)s)")
    again = "asked again for what the mask changed (default: %(default)s)"
    parser.add_argument("--explained", type=natural, default=30, metavar="N", help=again)
    options = parser.parse_args()
    started, is_public = time.monotonic(), options.format == "kimi-k2"
    model, bodies = options.output / MODEL, list[dict[str, Any]]()
    if is_public:
        bodies += map(to_line, drawn_tests(questions().tests, options.requests, options.seed))
        if not (model / "model.safetensors").exists():
            write_checkpoint(model)
    else:
        bodies += held_out_bodies(options.requests, options.seed, "kimi_k3")
        build_small_model(model, "kimi_k3")
    (options.output / SAMPLES).write_text("".join(json.dumps(body) + "\n" for body in bodies), "utf-8")
    passed = ("format", "output", "seed", "temperature", "explained")
    code = run_verb(["demo", *(f"--{name}={getattr(options, name)}" for name in passed)])
    if is_public and code != _NOTHING:
        print(*tables(open_run(options.output)), sep="\n\n")
    print(f"\nAll took {(time.monotonic() - started) / 60:.1f} minutes, without the installation.")
    return code


if __name__ == "__main__":
    sys.exit(main())
