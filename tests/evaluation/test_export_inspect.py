"""The logs of a run for Inspect: its own reader opens them, whatever the answers hold."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from constrained_k2.cli import main
from tests.evaluation.test_ab_results import BAD, EVIL, FAILED, SILENT, saved

_PYTHON = Path(os.environ.get("CLIENTS_FOLDER", Path(__file__).parents[2] / ".clients")) / "clients" / "bin" / "python"
_DEEP = (("functions.get_weather:0", "get_weather", '{"city": ' + "[" * 300 + "]" * 300 + "}"),)
_READER = """
import json, sys
from inspect_ai.log import list_eval_logs, read_eval_log

def call(each):
    return [each.function, each.arguments, each.parse_error]

for found in list_eval_logs(sys.argv[1], descending=False):
    log = read_eval_log(found)
    metrics = {score.name: score.metrics["accuracy"].value for score in log.results.scores}
    print(json.dumps([log.eval.metadata["arm"], metrics, [
        [s.id, s.epoch, {name: score.value for name, score in s.scores.items()}, s.scores["right"].answer,
         [call(each) for each in s.messages[-1].tool_calls or []], s.output.choices[0].stop_reason,
         s.error.message if s.error else None, s.input[0].text]
        for s in log.samples]]))
"""


@pytest.mark.skipif(not _PYTHON.exists(), reason="Inspect is in an environment that scripts/clients.sh makes")
def test_inspects_own_reader_opens_the_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = (("x", "get_weather", '{"city": '),)
    rows: list[dict[str, Any]] = [
        {"repeated": [BAD, broken]},
        {"calls": _DEEP},
        SILENT | {"content": f"Warm, I think {EVIL}", "reasoning": EVIL},
        FAILED | {"error": EVIL},
        {},
    ]
    run = saved(tmp_path, {"plain": rows, "constrained": [{}]}, repetitions=2)
    out = tmp_path / "logs"
    assert main(["ab", "--score-only", str(run.path), "--inspect", str(out)]) == 0
    printed = capsys.readouterr().out.replace("\n", "")
    assert [str(path) in printed for path in out.iterdir()] == [True, True]
    done = subprocess.run([_PYTHON, "-c", _READER, str(out)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    logs = {name: (metrics, samples) for name, metrics, samples in map(json.loads, done.stdout.splitlines())}
    metrics, samples = logs["plain"]
    assert metrics == {"right": 1 / 6, "in_form": 2 / 6}
    seen = [(*sample[:2], sample[2]["right"], *sample[3:4], sample[5], sample[6] is not None) for sample in samples]
    assert seen == [
        (1, 1, 0, "invalid_arguments", "tool_calls", False),
        (1, 2, 0, "invalid_json", "tool_calls", False),
        (2, 1, 0, "invalid_arguments", "tool_calls", False),
        (3, 1, 0, "missing_call", "stop", False),
        (4, 1, 0, "timeout", "tool_calls", True),
        (5, 1, 1, "", "tool_calls", False),
    ]
    calls = [sample[4] for sample in samples]
    assert calls[0] == [["get_weather", {"city": 3}, None]] and calls[5] == [["get_weather", {"city": "Oslo"}, None]]
    assert calls[1][0][:2] == ["get_weather", {}] and '{"city": ' in calls[1][0][2]
    assert calls[2][0][1] == {} and "nested" in calls[2][0][2]
    assert samples[0][7].startswith("#0 </pre><script>")
    assert logs["constrained"][0] == {"right": 1.0, "in_form": 1.0}
