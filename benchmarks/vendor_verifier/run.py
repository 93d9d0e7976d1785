"""Runs the verifier's own pytest suite as a process, and reads the report that it writes."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = "vendor_verifier"
"""The verifier's files among the data."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of the suite.

    Attributes:
        total: Cases that ran: each schema once whole and once streamed.
        failed: ``suite:line [mode]`` and the suite's message of each case that did not pass.
    """

    total: int
    failed: tuple[str, ...]

    @property
    def passed(self) -> int:
        """Cases whose arguments the suite accepted."""
        return self.total - len(self.failed)


def run_suite(url: str, folder: Path, report: Path, options: Sequence[str] = ()) -> Result:
    """Run all cases against a server.

    Args:
        url: The server's address, without ``/v1``.
        folder: The verifier's files.
        report: Where the suite writes its report.
        options: Further options of the suite or of pytest, for example ``--max-cases=10`` or ``-n 4``.

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
        tuple(
            f"{case['suite']}:{case['line']} [{case['mode']}] {_reason(case['message'])}"
            for case in cases
            if case["status"] != "passed"
        ),
    )


def _reason(message: str) -> str:
    """The assertion's own line of a traceback."""
    lines = [line for line in message.splitlines() if line.startswith("E ")]
    return (lines[0] if lines else message)[:400]
