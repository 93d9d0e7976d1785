"""The GPU benchmark without a GPU: the kernels in Triton's interpreter, its judge, its page and its exit codes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import parts
from benchmarks.gpu.engines import ENGINES, EngineCase
from benchmarks.gpu.machine import gpu_problem, machine
from benchmarks.gpu.parts import PARTS, PartOptions, run_part
from benchmarks.gpu.processes import Ended, run_limited
from benchmarks.gpu.ratios import ratio_of
from benchmarks.gpu.report import number, page
from benchmarks.gpu.results import Check, Figures, NotRun, PartResult, Recorder, Table

ROOT = Path(__file__).parents[2]


def run(*arguments: str, **variables: str) -> None:
    """Run Python in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | variables
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.fixture
def no_gpu() -> None:
    if gpu_problem() is None:
        pytest.skip("there is a GPU")


@pytest.mark.slow
def test_in_tritons_interpreter() -> None:
    """Kernels, graphs and times: tests in a process of its own, where neither vLLM nor an engine is imported."""
    pytest.importorskip("triton", reason="Triton is not installed")
    run(
        "-m",
        "pytest",
        "-x",
        "-q",
        "--noconftest",
        "-p",
        "no:cacheprovider",
        "tests/benchmarks/gpu_interpreted.py",
        TRITON_INTERPRET="1",
    )


def test_uploads_without_a_gpu(tmp_path: Path) -> None:
    """Rows that write calls get the logits of the reference, and what they upload is counted."""
    from benchmarks.gpu import uploads

    record = Recorder("uploads", tmp_path / "part.json")
    options = PartOptions(
        time.monotonic() + 3600, interpret=True, shared="/nonexistent", model=None, output=str(tmp_path)
    )
    uploads.measure(options, record)
    (check,) = record.result.checks
    assert check.passed and check.note == "20 steps of 8 rows"
    (table,) = record.result.tables
    assert [row[0] for row in table.rows] == ["cold: bytes uploaded", "warm: bytes uploaded"]
    assert all(isinstance(row[1], int | float) and row[1] > 0 for row in table.rows)


@pytest.mark.slow
def test_the_v2_processor_is_driven_without_vllms_runner(tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    code = f"""
import time
from pathlib import Path
from benchmarks.gpu import processor_step
from benchmarks.gpu.results import Recorder
from benchmarks.gpu.rows import Calls
from constrained_k2.vllm_plugin.metrics.counters import engine_counters
path = Path({str(tmp_path)!r})
record = Recorder("uploads", path / "part.json")
calls = Calls(Path("/nonexistent"), path / "tokenizer", 4)
processor_step.measure(calls, 4, record, time.monotonic() + 3600, device="cpu", steps=20)
assert engine_counters.masked_steps > 20 and engine_counters.ended_early == 0
"""
    run("-c", code)
    result = PartResult.from_json(json.loads((tmp_path / "part.json").read_text()))
    (table,) = result.tables
    assert [row[0] for row in table.rows] == ["begin", "apply"]


@pytest.mark.server
@pytest.mark.only_all
def test_an_engine_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One engine as on a GPU, but eager: its answers are judged, and its steps are timed."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from benchmarks.gpu.engine_part import Engines, fact_rows, run_engine, speed_rows
    from constrained_k2.testing import build_model

    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = build_model(tmp_path / "model", arch="llama")
    flags = {"max_model_len": 4096, "max_num_batched_tokens": 4096, "max_num_seqs": 8}
    engines = Engines(str(model), tmp_path, flags, concurrencies=(1, 2), judged=6, tokens=16, timed_seconds=1.0)
    case = EngineCase(v2=False, route="logits_processor", graphs=False, timed=True)
    record = Recorder("vllm", tmp_path / "part.json")
    found = run_engine(case, engines, 500, record)
    assert [check.passed for check in record.result.checks] == [True], record.result.checks
    assert [row[1] for row in fact_rows(case, found)] == ["V1"]
    assert [row[1] for row in speed_rows(case, found)] == [1, 2]


def test_answers_are_judged() -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from benchmarks.gpu.engine_requests import problem
    from constrained_k2 import Vocabulary

    vocabulary = Vocabulary.of_bytes()
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    body = {"messages": [{"role": "user", "content": "?"}], "tools": tools, "tool_choice": "required"}
    markers = vocabulary.format

    def calls(*texts: str) -> list[int]:
        ids = [markers.section_begin]
        for text in texts:
            header, _, arguments = text.partition(" ")
            ids += [markers.call_begin, *vocabulary.encode(header), markers.argument_begin]
            ids += [*vocabulary.encode(arguments), markers.call_end]
        return [*ids, markers.section_end, markers.turn_end]

    assert problem(body, calls('functions.f:0 {"n": 1}', 'functions.f:1 {"n": 2}'), vocabulary) is None
    text = vocabulary.encode("no")
    assert problem(body | {"tool_choice": "auto"}, text, vocabulary) is None
    for wrong, found in {
        'functions.f:1 {"n": 1}': "the index 1, expected 0",
        'functions.g:0 {"n": 1}': "'g', which is not declared",
        "functions.f:0 {}": "'n' is a required property",
        'functions.f:0 {"n": 1': "arguments of 'f'",
    }.items():
        assert found in str(problem(body, calls(wrong), vocabulary))
    assert "no call" in str(problem(body, text, vocabulary))
    assert "cut" in str(problem(body, calls('functions.f:0 {"n": 1}')[:-3], vocabulary))


def test_engines_differ_and_ask_for_what_they_are_named_after() -> None:
    assert len(set(map(str, ENGINES))) == len(ENGINES)
    assert {(case.v2, case.route) for case in ENGINES if case.timed} == {
        (v2, route) for v2 in (False, True) for route in ("structured_output", "logits_processor")
    }
    assert {case.drafts for case in ENGINES} == {"none", "grammar", "ngram", "ngram_gpu"}
    assert {case.graphs for case in ENGINES} == {case.asynchronous for case in ENGINES} == {False, True}
    for case in ENGINES:
        flags = case.flags
        assert flags["enforce_eager"] != case.graphs
        assert ("logits_processors" in flags) == (case.route == "logits_processor")
        assert ("speculative_config" in flags) == (case.drafts != "none")
        assert flags.get("async_scheduling", True) == case.asynchronous
        assert case.drafts == "none" or "async_scheduling" not in flags or not case.asynchronous
        # V1 takes no logits processors under speculative decoding, and the engine core makes grammar drafts.
        assert case.drafts == "none" or case.v2 or case.route == "structured_output"
        assert case.drafts != "grammar" or (case.route == "structured_output" and not case.v2)


def test_the_page(tmp_path: Path) -> None:
    record = Recorder("kernels", tmp_path / "part.json")
    record.check("equal", passed=True, note="3 launches")
    record.check("a | b", passed=False, note="row 3\ndiffers")
    record.table(
        Table("Launches, µs", ("", "launch", "share"), (("1 row", 12.3456, 0.98765), ("2 rows", 1234.5, None)))
    )
    record.not_run("graphs", "they need a GPU")
    options = {"parts": ["kernels"], "minutes": 9.0, "interpret": False, "model": None}
    left = PartResult.from_json(json.loads((tmp_path / "part.json").read_text()))
    assert left == record.result
    figures = Figures({"GPU": "NVIDIA X", "driver": "1.2"}, options, [left, PartResult("vllm")])
    text = page(figures)
    assert "**1 of 2 checks passed. 1 failed.** Not run: 1." in text
    assert "`python -m benchmarks.gpu --part kernels --minutes 9`" in text
    for line in (
        "| GPU | NVIDIA X |",
        "| equal | yes | 3 launches |",
        "| a \\| b | **no** | row 3 differs |",
        "| 1 row | 12.3 | 0.988 |",
        "| 2 rows | 1,234 |  |",
        "* not run: graphs: they need a GPU",
        "## Whole engines",
    ):
        assert line in text.splitlines()
    assert json.loads(json.dumps(figures.to_json()))["parts"][0]["tables"][0]["rows"][1] == ["2 rows", 1234.5, None]


def test_numbers_and_tables() -> None:
    assert [number(cell) for cell in (0.0, 3, 12_345, 99.96, 123.4, "x", None)] == [
        "0",
        "3",
        "12,345",
        "100",
        "123",
        "x",
        "",
    ]
    with pytest.raises(ValueError, match="1 cells: expected 2"):
        Table("t", ("", "a"), (("row",),))


def test_ratios_have_an_interval() -> None:
    found = ratio_of([1.0, 2.0, 4.0], [2.0, 2.0, 2.0])
    assert found.mean == pytest.approx(1.0)
    assert 0.5 <= found.low < 0.9 and 1.1 < found.high <= 2.0


def test_no_gpu(no_gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert command.main(["--output", str(out)]) == 2
    error = capsys.readouterr().err
    assert "python -m benchmarks.gpu: no GPU: " in error and "--interpret" in error
    assert not out.exists()
    assert machine()["GPU"] == "none"


def answering(
    results: dict[str, PartResult], asked: list[tuple[str, float]]
) -> Callable[[str, PartOptions], PartResult]:
    def run_part(name: str, options: PartOptions) -> PartResult:
        assert options.device == "cpu"
        asked.append((name, options.seconds))
        return results.get(name, PartResult(name))

    return run_part


@pytest.mark.parametrize(
    ("arguments", "expected"), [([], list(PARTS)), (["--part", "vllm", "--part", "kernels"], ["kernels", "vllm"])]
)
def test_parts_share_the_time(
    arguments: list[str], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []
    monkeypatch.setattr(command, "run_part", answering({}, asked))
    assert command.main([*arguments, "--interpret", "--output", str(tmp_path), "--minutes", "10"]) == 0
    assert [name for name, _ in asked] == expected
    last, first = asked[-1][1], asked[0][1]
    assert 500 < last <= 570  # the earlier parts left all of it
    share = PARTS[expected[0]].share / sum(PARTS[name].share for name in expected)
    assert 0.9 * share * 570 < first < share * 570 + 1
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert written["options"]["parts"] == [part["name"] for part in written["parts"]] == expected
    assert (tmp_path / "gpu.md").read_text().startswith("# GPU benchmark")


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1)])
def test_the_exit_code(passed: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = PartResult("kernels", [Check("equal", passed)], [], [NotRun("graphs", "they need a GPU")])
    monkeypatch.setattr(command, "run_part", answering({"kernels": result}, []))
    assert command.main(["--interpret", "--output", str(tmp_path)]) == code


@pytest.mark.parametrize(
    "arguments", [["--part", "x"], ["--minutes", "0"], ["--minutes", "nan"], ["--output", __file__]]
)
def test_bad_use(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert "usage: python -m benchmarks.gpu" in capsys.readouterr().err


def part_of(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have the part ``kernels`` run a module with this ``measure``."""
    (folder / "made_up.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{ROOT}")
    start = (
        "import sys; from benchmarks.gpu import parts;"
        "parts.import_module = lambda name: __import__('made_up');"
        "sys.exit(parts.main(*sys.argv[1:]))"
    )
    run = run_limited

    def instead(command: list[str], **options: Any) -> Any:
        assert command[1:3] == ["-m", "benchmarks.gpu.parts"]
        return run([command[0], "-c", start, *command[3:]], **options)

    monkeypatch.setattr(parts, "run_limited", instead)


@pytest.mark.parametrize(
    ("body", "checks", "not_run"),
    [
        ("record.check('a', passed=True)", ["a"], []),
        ("record.check('a', passed=True); raise ValueError('no such luck')", ["a", "the part ran to its end"], []),
        ("record.check('a', passed=True); import no_such_package.x", ["a"], ["the rest of this part"]),
    ],
)
def test_a_part_that_fails_leaves_its_results(
    body: str, checks: list[str], not_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part_of(f"def measure(options, record):\n    {body}\n", tmp_path, monkeypatch)
    end = time.monotonic() + 300
    result = run_part("kernels", PartOptions(end, interpret=True, shared="", model=None, output=str(tmp_path)))
    assert [check.what for check in result.checks] == checks
    assert [entry.what for entry in result.not_run] == not_run
    if result.failed:
        assert "ValueError: no such luck: see " in result.failed[0].note


@pytest.mark.slow
def test_a_part_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part_of(
        "import time\ndef measure(options, record):\n    record.check('a', passed=True)\n    time.sleep(3600)\n",
        tmp_path,
        monkeypatch,
    )
    monkeypatch.setattr(parts, "_RESERVE", 20.0)  # imports on a busy machine
    now = time.monotonic()
    result = run_part("kernels", PartOptions(now, interpret=True, shared="", model=None, output=str(tmp_path)))
    assert [check.what for check in result.checks] == ["a"]
    assert [entry.what for entry in result.not_run] == ["the rest of this part"]


def test_engines_run_until_the_time_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings of engines become checks, two tables, and lines for what was not run."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from benchmarks.gpu import engine_part

    left = iter([300.0, 300.0, 300.0])
    monkeypatch.setattr(PartOptions, "seconds", property(lambda _: next(left, 20.0)))
    ran: list[str] = []

    def engine(command: list[str], *, limit: float, log: Path, environment: dict[str, str]) -> Ended:
        path = Path(command[-1])
        job = json.loads(path.read_text())
        ran.append(environment["VLLM_USE_V2_MODEL_RUNNER"])
        log.write_text("")
        facts = {"runner": "V1", "graphs": "FULL", "asynchronous": len(ran) == 1}
        found: dict[str, Any] = {"facts": facts, "judged": {"answers": 48, "tokens": 5000, "wrong": []}}
        found["timed"] = {str(count): {"with": [9.0, 10.0, 11.0], "without": 3 * [10.0]} for count in job["timed"]}
        if len(ran) == 2:
            found["judged"]["wrong"] = ["request 7: no call, although one is required"]
        if len(ran) == 3:
            return Ended(1, in_time=True, log_end="ValueError: no luck\n[rank0] bye")
        path.with_suffix(".out.json").write_text(json.dumps(found))
        return Ended(0, in_time=len(ran) != 2, log_end="")

    monkeypatch.setattr(engine_part, "run_limited", engine)
    record = Recorder("vllm", tmp_path / "part.json")
    options = PartOptions(0.0, interpret=False, shared="", model="some/model", output=str(tmp_path))
    engine_part.measure(options, record)
    assert ran == ["0", "1", "1"]
    result = record.result
    assert [(check.passed, check.note.partition(": see ")[0]) for check in result.checks] == [
        (True, "48 answers, 5,000 tokens"),
        (False, "request 7: no call, although one is required"),
        (False, "ValueError: no luck"),
    ]
    speeds, facts = result.tables
    assert speeds.rows[1][1:4] == (32, 10.0, 10.0) and len(speeds.rows) == 6
    assert str(speeds.rows[0][4]).startswith("0.99") and "some/model" in speeds.note
    assert [row[3] for row in facts.rows] == ["yes", "no"]
    reasons = [entry.why for entry in result.not_run]
    assert reasons.count("the time was used up") == len(ENGINES) - 3
    assert sum("turned asynchronous scheduling off" in why for why in reasons) == 1
    assert sum("it was ended after" in why for why in reasons) == 1


def test_without_vllm_no_engine_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.gpu import engine_part

    record = Recorder("vllm", tmp_path / "part.json")
    options = PartOptions(0.0, interpret=False, shared="", model=None, output=str(tmp_path))
    monkeypatch.setattr(engine_part, "entry_points", lambda **_: ())
    engine_part.measure(options, record)
    monkeypatch.setattr(engine_part, "find_spec", lambda _: None)
    engine_part.measure(options, record)
    assert not record.result.checks
    assert [entry.what for entry in record.result.not_run] == 2 * ["whole engines"]
    assert "vLLM is not installed" in record.result.not_run[-1].why


@pytest.mark.slow
@pytest.mark.parametrize("v2", [False, True])
def test_vllm_takes_the_flags_of_every_engine(v2: bool, tmp_path: Path) -> None:
    """No engine is started: vLLM checks its configuration, V2's with kernels in Triton's interpreter."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    pytest.importorskip("triton", reason="vLLM's V2 model runner is written in Triton, which is not installed")
    code = f"""
if {v2}:
    import benchmarks.gpu.triton_on_cpu
from pathlib import Path
from vllm.engine.arg_utils import EngineArgs
from vllm.plugins import load_general_plugins
from benchmarks.gpu.engines import ENGINES
from constrained_k2.testing import build_model
load_general_plugins()
model = str(build_model(Path({str(tmp_path)!r}), arch="llama"))
for case in ENGINES:
    if case.v2 == {v2}:
        config = EngineArgs(model=model, trust_remote_code=True, max_model_len=4096, **case.flags).create_engine_config()
        assert config.use_v2_model_runner == case.v2, case
        drafts = {{"none": None, "grammar": "custom_class"}}.get(case.drafts, case.drafts)
        assert getattr(config.speculative_config, "method", None) == drafts, case
"""
    run("-c", code, VLLM_USE_V2_MODEL_RUNNER=str(int(v2)), HF_HUB_OFFLINE="1")
