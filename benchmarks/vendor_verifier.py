"""Run the schema suite of the Kimi Vendor Verifier against a server that is started here, and count what it accepts.

The suite is the verifier's own, unchanged (`python -m scripts.fetch_data --only vendor_verifier`). The model is
untrained: it ends a value by chance only, so the operator's finish reserve ends what max_tokens would cut. Further
options go to the suite or to pytest, for example ``--max-cases=10`` or ``-n 4``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from constrained_k2.evaluation.server import BACKEND_FLAGS, KIMI_K3_FLAGS, VllmServer, with_settings
from constrained_k2.testing import build_model
from scripts.fetch_data import data_path

_RESERVE = 60  # tokens
FOLDER = "vendor_verifier"
"""The verifier's files among the data."""


class Result(NamedTuple):
    """The outcome of the suite: cases that ran, each schema once whole and once streamed, and those that failed."""

    total: int
    failed: list[str]  # ``suite:line [mode]`` and the suite's message

    @property
    def passed(self) -> int:
        """Cases whose arguments the suite accepted."""
        return self.total - len(self.failed)


def main() -> int:
    """Run the suite; 1 if a case fails."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vendor_verifier", description=__doc__)
    formats = ("kimi_k2", "kimi_k3")
    parser.add_argument("--wire-format", choices=formats, default="kimi_k2", help="(default: %(default)s)")
    options, further = parser.parse_known_args()
    folder = data_path(FOLDER)
    if not folder.is_dir():
        parser.error(f"no {folder}: run python -m scripts.fetch_data --only {FOLDER}")
    flags = with_settings(BACKEND_FLAGS, finish_reserve=_RESERVE, undeclared_calls="nearest")
    if options.wire_format == "kimi_k3":
        flags = (*flags, *KIMI_K3_FLAGS)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        model = build_model(directory / "model", arch="kimi_k2", wire_format=options.wire_format)
        with VllmServer(model, flags, log=directory / "server.log") as server:
            result = run_suite(server.url, folder, directory / "report.json", further)
    for line in result.failed:
        print(line)
    print(f"{result.passed} of {result.total} cases valid")
    return int(bool(result.failed))


def run_suite(url: str, folder: Path, report: Path, options: Sequence[str] = ()) -> Result:
    """Run all cases against the server of a URL without ``/v1``; the suite writes its report to ``report``.

    Raises:
        RuntimeError: The suite wrote no report; the end of its output says why.
    """
    report.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "pytest", "tests/tool_call_json_schema", "-p", "no:cacheprovider", "--tb=no"),
        *("--base-url", f"{url}/v1", "--api-key", "none", "--smoke-model", "kimi-k2", "--think-mode", "none"),
        *("--tool-json-report", str(report.resolve()), *options),
    ]
    # Without the variables of a pytest that runs this: the suite takes those of pytest-xdist for its own.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if not report.is_file():
        raise RuntimeError(f"the suite wrote no report:\n{(ran.stdout + ran.stderr)[-2000:]}")
    cases = json.loads(report.read_text("utf-8"))["results"]
    return Result(
        len(cases),
        [
            f"{case['suite']}:{case['line']} [{case['mode']}] {_reason(case['message'])}"
            for case in cases
            if case["status"] != "passed"
        ],
    )


def _reason(message: str) -> str:
    """The assertion's own line of a traceback."""
    lines = [line for line in message.splitlines() if line.startswith("E ")]
    return (lines[0] if lines else message)[:400]


if __name__ == "__main__":
    sys.exit(main())
