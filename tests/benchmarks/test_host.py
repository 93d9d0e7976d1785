"""The host benchmark runs, its turns are as described, and xgrammar's tag is built as vLLM builds it."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from benchmarks.host.__main__ import main
from benchmarks.host.arms import Arm, LLGuidanceArm, Ours, counted_engine_calls
from benchmarks.host.instances import instance_of
from benchmarks.host.plots import bars, write_plots
from benchmarks.host.report import promises, tables
from benchmarks.host.run import QUICK, measure
from benchmarks.host.timing import Times
from benchmarks.host.workload import Workload, changed, load
from constrained_k2 import ToolCallSpec
from scripts.bundled_samples.ordinary import TOOLS


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    """Without shared data."""
    return load(Path("/nonexistent"), tmp_path_factory.mktemp("bench") / "tokenizer")


def test_times() -> None:
    assert Times.of([3.0, 1.0, 2.0]) == Times(3, 2.0, 2.0, 3.0, 3.0)
    assert Times.of(list(range(1, 201))) == Times(200, 100.5, 100, 199, 200)


def test_instances_are_valid() -> None:
    found = 0
    for tool in TOOLS:
        schema = tool["function"].get("parameters", {"type": "object"})
        for seed in range(4):
            value = instance_of(schema, seed)
            if value is not None:
                jsonschema.validate(value, schema)
                found += 1
    assert found >= 12
    assert instance_of({"type": "object", "properties": {"a": {"pattern": "^b$"}}, "required": ["a"]}) is None


def test_lists_of_any_length_hold_distinct_tools(workload: Workload) -> None:
    tools = workload.first(20)
    spec = ToolCallSpec.from_openai({"tools": tools})
    assert len(spec.tools) == 20
    others = ToolCallSpec.from_openai({"tools": changed(tools, 3, 7)})
    different = [number for number in range(20) if spec.tools[number] != others.tools[number]]
    assert different == [3]
    assert others.tools[3].name == spec.tools[3].name


def test_turns_go_through_every_phase_and_are_accepted(workload: Workload) -> None:
    tools = workload.first(3)
    arms: tuple[Arm, ...] = (Ours(workload.vocabulary), LLGuidanceArm(workload.vocabulary))
    for arm in arms:
        compiled = arm.compile(arm.request(tools))
        for seed in range(4):
            turn = workload.turn(tools, seed)
            assert set(turn.phases) == {"text", "marker", "header", "string", "structure"}
            matcher = arm.matcher(compiled)
            assert all(arm.accept(matcher, token) for token in turn.ids)


def test_engine_calls_are_counted(workload: Workload) -> None:
    arm = Ours(workload.vocabulary)
    tools = workload.first(2)
    turn = workload.turn(tools, 0, calls=1)
    matcher = arm.matcher(arm.compile(arm.request(tools)))
    with counted_engine_calls() as calls:
        for token in turn.ids[: turn.phases.index("header")]:
            arm.accept(matcher, token)
        assert calls() == 0
        for token in turn.ids[turn.phases.index("header") :]:
            arm.accept(matcher, token)
        assert calls() == turn.phases.count("string") + turn.phases.count("structure")


@pytest.mark.slow
def test_a_small_run(workload: Workload, tmp_path: Path) -> None:
    plan = replace(QUICK, sizes=(1, 2), listed=2, repeats=1, turns=2, batch_steps=3, cold_turns=1, live=3)
    plan = replace(plan, cache_requests=6, cache_schemas=3)
    figures = measure(workload, plan, lambda _: None)
    figures.promises = promises(figures)
    assert figures.text_engine_calls == 0
    assert any("no engine call" in what and holds for what, _, holds in figures.promises)
    assert set(figures.first_mask) == {"ours", "xgrammar's tag", "LLGuidance's grammar"}
    written = json.loads(json.dumps(figures.to_json()))
    assert set(written["steps"]["ours"]["fill"]) == {"text", "marker", "header", "string", "structure"}
    assert "must hold" in tables(figures)
    for path in write_plots(figures, tmp_path):
        ET.parse(path)


def test_bars_carry_their_values(tmp_path: Path) -> None:
    bars(
        "$title$ <ms>",
        {"ours": {"1 tool": 0.5, "9 tools": 12.34, "99 tools": 1.0}, "other": {"1 tool": 3.0, "9 tools": 45678.9}},
        tmp_path / "a.svg",
    )
    texts = [element.text for element in ET.parse(tmp_path / "a.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert {"$title$ <ms>", "ours", "other", "1 tool", "9 tools", "0.5", "12.3", "3", "45,679"} <= set(texts)


def test_the_output_must_be_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(SystemExit) as ended:
        main(["--output", str(path)])
    assert ended.value.code == 2
    assert "name a folder" in capsys.readouterr().err


def test_xgrammar_sees_the_vocabulary_as_vllm_shows_it(workload: Workload, tmp_path: Path) -> None:
    import xgrammar
    from transformers import AutoTokenizer

    from benchmarks.baselines.whole_turn import XGrammarTag
    from constrained_k2.testing import write_tokenizer

    write_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=True)
    theirs = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=workload.vocabulary.size)
    ours = XGrammarTag(workload.vocabulary).info
    assert theirs.decoded_vocab == ours.decoded_vocab
    assert theirs.special_token_ids == ours.special_token_ids
