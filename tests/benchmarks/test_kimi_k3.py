"""The measurements of Kimi K3's format: random walks, the reader of blocks, steps against K2's."""

import json
from collections import defaultdict
from pathlib import Path
from random import Random

import pytest

from benchmarks.host.workload import Workload, load
from benchmarks.kimi_k3 import __main__ as command
from benchmarks.kimi_k3 import steps, walks
from benchmarks.kimi_k3.reading import by_text, by_token, calls_in
from benchmarks.kimi_k3.vocabulary import with_k3_tokens
from benchmarks.kimi_k3.walker import Walker
from constrained_k2 import Compiler, Vocabulary
from constrained_k2.prompts.xtml import render_turn
from constrained_k2.request.spec import ToolCall
from constrained_k2.turn.phases import Phase
from constrained_k2.vocabulary.bitmask import TokenSet, allocate_bitmask
from tests.data import mcp_servers

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": ["integer", "null"]},
        "parts": {"type": "array", "items": {"enum": ["day", "night"]}},
    },
    "required": ["city", "days"],
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}


@pytest.fixture(scope="module")
def k3(small_vocabulary: Vocabulary) -> Vocabulary:
    return with_k3_tokens(small_vocabulary)


def test_walks_are_valid_calls(k3: Vocabulary) -> None:
    found = walks.run([TOOL], k3, 60, print)
    assert not found.faults
    assert found.walks + found.cut == 60
    assert found.calls >= found.walks > 50
    assert found.arguments >= 2 * found.calls
    assert found.shuffled > 50
    assert walks.table(found, 0, [], print)
    assert not walks.table(found, 1, ["wrong"], print)


def test_a_walk_that_breaks_the_schema_is_found(k3: Vocabulary) -> None:
    compiled = walks.compile_tool(Compiler(k3), TOOL, "forbid")
    for arguments, fault in (
        ('{"days": 1}', "without ['city']"),
        ('{"city": "a", "days": 1, "city": "b"}', "city is written twice"),
        ('{"city": "a", "days": "1"}', "'1' is not of type 'integer', 'null'"),
    ):
        ids = render_turn([ToolCall("weather", 1, arguments)], k3)
        assert not walks.writes(compiled, ids)
        found = walks._judge(ids, TOOL, compiled, k3, walks.Figures())
        assert any(fault in each for each in found), found
    ids = render_turn([ToolCall("weather", 1, '{"city": "a", "days": null}')], k3, first_index=2)
    assert walks._judge(ids, TOOL, compiled, k3, walks.Figures()) == ["index 2 of call 1"]


def test_random_tokens_are_those_of_the_mask(k3: Vocabulary) -> None:
    walker, allowed = Walker(k3), {3, 31, 32, 63, 64, 700, 1023}
    row = allocate_bitmask(1, k3.size)[0]
    TokenSet(allowed, k3.size).fill(row)
    assert {walker._choose(row, Random(seed), 0) for seed in range(200)} == allowed
    row[:] = 0
    assert walker._choose(row, Random(0), 0) == -1


def test_blocks_are_read_by_token_and_by_text(k3: Vocabulary) -> None:
    spelled = "a<|close|>argument<|sep|>b"
    ids = render_turn([ToolCall("f", 1, json.dumps({"x&": spelled, "n": 1.5, "o": {"s": 1}}))], k3, response="Hi")
    (call,) = calls_in(by_token(ids, k3))
    assert (call.name, call.index) == ("f", "1")
    assert [(block.key, block.type, block.text) for block in call.blocks] == [
        ("x&", "string", spelled), ("n", "number", "1.5"), ("o", "object", '{"s": 1}'),
    ]  # fmt: skip
    assert all(block.is_tied for block in call.blocks)
    (cut,) = calls_in(by_text(ids, k3))
    assert cut.blocks[0].text == "a"
    call.blocks[1].type = "null"
    call.blocks[2].text = "{"
    assert [block.is_tied for block in call.blocks] == [True, False, False]


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    """A workload of the package's own tools, also beside the real data."""
    directory = tmp_path_factory.mktemp("workload")
    return load(directory / "nothing", directory / "tokenizer")


@pytest.mark.slow
def test_steps_of_the_same_calls_in_both_formats(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_LONG_LIST", 6)
    found = steps.measure(workload, with_k3_tokens(workload.vocabulary), (6, 4, 2), print)
    for kind in ("first", "second", "steady"):
        for name in ("Kimi K2", "Kimi K3"):
            assert len(found.steps[kind][name].turns) == 4
            assert found.step(name, kind) > 0
    assert found.steps["steady"]["Kimi K3"].phases.keys() >= {Phase.JOINT, Phase.ARGUMENTS, Phase.CALL_ID}
    lines: list[str] = []
    holds = steps.table(found, lines.append)
    assert lines[-1].endswith("yes." if holds else "NO.")
    slow = defaultdict(list, {number: [9e9] for number in range(4)})
    found.steps["steady"]["Kimi K3"].turns = slow
    assert not steps.table(found, lines.append)


def test_data_that_is_missing_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["walks", "--shared", str(tmp_path)])
    assert "fetch_data" in capsys.readouterr().err


@pytest.mark.slow
def test_walks_over_real_tools(real_vocabulary: Vocabulary) -> None:
    k3 = with_k3_tokens(real_vocabulary)
    tools = [tool for server in mcp_servers() for tool in server]
    found = walks.run(tools, k3, len(tools), print)
    assert not found.faults
    assert found.walks > 250
    written, faults = walks.shuffles_of_instances(tools[::3], k3, 2)
    assert written > 150
    assert not faults


@pytest.mark.slow
def test_the_tag_beside_ours(real_vocabulary: Vocabulary) -> None:
    pytest.importorskip("vllm")
    from benchmarks.kimi_k3 import tag
    from benchmarks.schemas.corpora import Case

    case = Case("weather", json.dumps(PARAMETERS))
    figures, offered = tag.compare([case], with_k3_tokens(real_vocabulary), 8, print)
    ours, theirs = figures["ours"], figures["vLLM 0.32's tag"]
    assert ours.walks == theirs.walks == 8
    assert not ours.faults
    assert min(offered.values()) > 0
    assert ours.written == offered
    assert {"wrong index", "missing required keys"} <= theirs.faults.keys()
    assert not theirs.written["... and is read back"]
    assert tag.table(figures, offered, print)
