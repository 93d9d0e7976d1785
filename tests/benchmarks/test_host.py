"""The host benchmark runs, its turns are as described, and xgrammar's tag is built as vLLM builds it."""

from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from benchmarks.host.__main__ import QUICK, measure
from benchmarks.host.arms import NAMES, llguidance_grammar, ours, xgrammar_vocabulary
from benchmarks.host.instances import instance_of
from benchmarks.host.timing import Times
from benchmarks.host.workload import PHASES, Workload, changed, load
from benchmarks.report import Report
from constrained_k2 import ToolCallSpec
from scripts.bundled_samples.ordinary import TOOLS


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return load(tmp_path_factory.mktemp("bench") / "tokenizer", is_small=True)


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
    for arm in (ours(workload.vocabulary), llguidance_grammar(workload.vocabulary)):
        compiled = arm.compile(arm.request(tools))
        for seed in range(4):
            turn = workload.turn(tools, seed)
            assert set(turn.phases) == {"text", "marker", "header", "string", "structure"}
            matcher = arm.matcher(compiled)
            assert all(arm.accept(matcher, token) for token in turn.ids)


@pytest.mark.slow
def test_a_small_run(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    plan = replace(QUICK, sizes=(1, 2), listed=2, repeats=1, turns=2, batch_steps=3, cold_turns=1, live=3)
    measure(workload, replace(plan, cache_requests=6, cache_schemas=3), Report())
    printed = capsys.readouterr().out
    assert f"|  | {' | '.join(PHASES)} |" in printed
    assert [printed.count(f"| {name} | ") for name in NAMES] == [9, 9, 9]  # in each table


def test_xgrammar_sees_the_vocabulary_as_vllm_shows_it(workload: Workload, tmp_path: Path) -> None:
    import xgrammar
    from transformers import AutoTokenizer

    from constrained_k2.testing import write_tokenizer

    write_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=True)
    theirs = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=workload.vocabulary.size)
    found = xgrammar_vocabulary(workload.vocabulary)
    assert theirs.decoded_vocab == found.decoded_vocab
    assert theirs.special_token_ids == found.special_token_ids
