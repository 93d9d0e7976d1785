"""Compare answers with undeclared keys allowed and forbidden (about 5 minutes; resumes in --output).

Serves the small model, and sends its held-out requests with ``additionalProperties`` removed from their schemas: as
they are, every schema forbids other keys itself.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from constrained_k2.evaluation.ab.arms import Arm
from constrained_k2.evaluation.ab.directory import RunDirectory, Sampling, begin
from constrained_k2.evaluation.ab.figures import totals
from constrained_k2.evaluation.ab.results import score
from constrained_k2.evaluation.ab.runner import AttemptLimits
from constrained_k2.evaluation.ab.serving import TEMPERATURE, Sending, Served
from constrained_k2.evaluation.sample import Sample, key_of
from constrained_k2.evaluation.server import CONSTRAINED_FLAGS
from constrained_k2.schema.undeclared_keys import UNDECLARED_KEYS
from constrained_k2.vllm_plugin.shared.settings import UNDECLARED_KEYS_KEY
from scripts.small_model.shipped import build_small_model, held_out_samples

ARMS = tuple(
    Arm(setting, preset="constrained", body={"vllm_xargs": {UNDECLARED_KEYS_KEY: setting}})
    for setting in UNDECLARED_KEYS
)


def main() -> int:
    """Send the requests, and print one line per arm."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.undeclared_keys", description=__doc__)
    parser.add_argument("--requests", type=int, default=300, help="an arm (default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=1, help="of each request (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("undeclared_keys_output"), help="(default: %(default)s)")
    options = parser.parse_args()
    sampling = Sampling(TEMPERATURE, repetitions=options.repetitions)
    source = f"{options.requests} held-out requests of the small model, without additionalProperties"
    directory = begin(options.output, source, map(opened, held_out_samples(options.requests)), sampling)
    model = build_small_model(options.output / "model")
    Sending(directory, AttemptLimits(), is_shown=sys.stderr.isatty()).serve(
        model, [Served("server", CONSTRAINED_FLAGS, ARMS)]
    )
    results = score(directory, baseline=ARMS[0].name)
    for name in results.arms:
        counts, undeclared = totals(results.rows(name)), sum(_undeclared(directory, name))
        print(
            f"{name:7} right {counts['right']} of {counts['requests']}, expected functions {counts['tool_match']} and "
            f"arguments {counts['argument_match']} of {counts['expected']}, valid calls {counts['valid']} of "
            f"{counts['calls']}, calls with undeclared keys {undeclared}, cut off {counts['truncated']}"
        )
    print(f"McNemar, right answers: {results.pairings[ARMS[1].name]['right']}")
    return 0


def opened(sample: Sample) -> Sample:
    """The sample without ``additionalProperties`` in the schemas of its tools."""
    body = sample.body | {"tools": _without(sample.body["tools"])}
    return replace(sample, body=body, key=key_of(body, 0))


def _without(value: Any) -> Any:
    if isinstance(value, list):
        return [_without(item) for item in value]
    if isinstance(value, dict):
        return {name: _without(inner) for name, inner in value.items() if name != "additionalProperties"}
    return value


def _undeclared(directory: RunDirectory, arm: str) -> Iterator[bool]:
    """For each finished call of a declared function, True if it has a key that the schema does not declare."""
    tools = {sample.key: sample.tools for sample in directory.read_samples()}
    for record in directory.records(arm):
        if record.finish_reason != "length":
            for _, name, arguments in record.calls:
                yield not json.loads(arguments).keys() <= tools[record.key][name]["properties"].keys()


if __name__ == "__main__":
    sys.exit(main())
