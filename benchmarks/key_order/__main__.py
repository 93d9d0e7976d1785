"""Compare calls with their keys in any order and in the schema's order (about 8 minutes; resumes in --output).

Serves the demo model with both engines: our LLGuidance grammars take keys in any order, our xgrammar grammars in the
schema's order. The probabilities are those of greedy answers under the unconstrained model.
"""

import argparse
import json
import sys
from pathlib import Path

from constrained_k2.evaluation.ab.arms import Arm
from constrained_k2.evaluation.ab.directory import Sampling, begin
from constrained_k2.evaluation.ab.figures import totals
from constrained_k2.evaluation.ab.loaders import numbered_keys
from constrained_k2.evaluation.ab.report import write_reports
from constrained_k2.evaluation.ab.results import score
from constrained_k2.evaluation.ab.runner import Limits
from constrained_k2.evaluation.demo.comparison import TEMPERATURE, DemoRun, Served, demo_samples
from constrained_k2.evaluation.server import CONSTRAINED_FLAGS

ANY, FIXED = Arm("any-order", preset="llguidance"), Arm("schema-order", preset="xgrammar")
ARMS = (Arm("unconstrained", preset="unconstrained"), ANY, FIXED)
_FLAGS = ("--additional-config", json.dumps({"constrained_k2": {"engines": ["llguidance", "xgrammar"]}}))


def main() -> int:
    """Send the requests, write the report, and print two lines per constrained arm."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.key_order", description=__doc__)
    parser.add_argument("--requests", type=int, default=300, help="an arm (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("key_order_output"), help="(default: %(default)s)")
    options = parser.parse_args()
    source = f"{options.requests} held-out requests of the demo model"
    samples = numbered_keys(demo_samples(options.requests))
    directory = begin(options.output, source, samples, Sampling(TEMPERATURE))
    run = DemoRun(directory, Limits(), explained=options.requests, is_shown=sys.stderr.isatty())
    run.run([Served("server", (*CONSTRAINED_FLAGS, *_FLAGS), ARMS)])
    results = score(directory, baseline=FIXED.name)
    for name in results.arms:
        counts = totals(results.rows(name))
        print(
            f"{name:13} right {counts['right']} of {counts['requests']}, expected functions {counts['tool_match']} and "
            f"arguments {counts['argument_match']} of {counts['expected']}, optional arguments "
            f"{counts['optional_written']} of {counts['optional_due']}"
        )
    for effects in results.effects:
        whole = effects.groups[0]
        print(
            f"{effects.arm:13} greedy: right {whole.right} of {whole.answers}, overrides {effects.overrides}, "
            f"probability per token {whole.written or 0:.3f}, unconstrained {whole.unconstrained or 0:.3f}, "
            f"cost {whole.cost or 0:.1f} bits"
        )
    print(f"McNemar, right answers: {results.pairings[ANY.name]['right']}")
    print(*write_reports(results), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
