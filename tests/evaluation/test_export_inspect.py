"""The logs of a run for Inspect: its own reader opens them, whatever the answers hold."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from constrained_k2.cli import main
from constrained_k2.evaluation.ab.arms import Arm
from constrained_k2.evaluation.ab.directory import Sampling, begin
from constrained_k2.evaluation.ab.export_inspect import write_inspect_logs
from constrained_k2.evaluation.ab.results import score
from constrained_k2.evaluation.answer import Record
from constrained_k2.evaluation.sample import BUNDLED, bundled_bodies, read_sample
from tests.evaluation.test_ab_results import ANSWERED, BAD, EVIL, FAILED, SILENT, saved
from tests.kit.tools import tool

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


pytestmark = pytest.mark.skipif(
    not _PYTHON.exists(), reason="Inspect is in an environment that scripts/clients.sh makes"
)


def opened(folder: Path) -> dict[str, Any]:
    """Each arm's metrics and samples, as Inspect's reader gives them."""
    done = subprocess.run(
        [_PYTHON, "-c", _READER, str(folder)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return {name: (metrics, samples) for name, metrics, samples in map(json.loads, done.stdout.splitlines())}


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
    logs = opened(out)
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


def test_requests_of_any_shape(tmp_path: Path) -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(300):
        deep = {"type": "object", "properties": {"a": deep}}
    user = {"role": "user", "content": "x"}
    odd: list[list[dict[str, Any]]] = [
        [
            {
                "role": "critic",
                "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "x"}}],
            }
        ],
        [user, {"role": "assistant", "tool_calls": [{"id": 7, "function": {"name": 5, "arguments": {"a": 1}}}]}],
        [user, {"role": "assistant", "content": None, "tool_calls": [{"function": None}]}, {"role": "tool"}],
        [{"role": "developer", "content": 5}, {"role": "function", "name": EVIL, "content": {"a": 1}}],
    ]
    bodies = [{"messages": messages, "tools": [tool("f", deep)], "top_p": float("nan")} for messages in odd]
    bodies += bundled_bodies(BUNDLED, 300)
    run = begin(
        tmp_path / "run", "odd", (read_sample(each, number) for number, each in enumerate(bodies, 1)), Sampling()
    )
    run.add_arms([Arm("plain", "http://x")])
    for sample in run.read_samples():
        run.add("plain", Record(sample.key, 0, **ANSWERED | SILENT))
    write_inspect_logs(score(run), tmp_path / "logs")
    assert len(opened(tmp_path / "logs")["plain"][1]) == len(bodies)
