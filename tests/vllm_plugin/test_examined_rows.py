"""The law of examined rows, on vLLM's own schedulers: every override of a turn is found, and none is invented."""

import math
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm.v1.request import RequestStatus

from constrained_k2 import Compiler, ToolCallSpec, Vocabulary
from constrained_k2.explain.records import ExaminedRow
from constrained_k2.vllm_plugin.metrics.row_plan import ROWS_KEY
from constrained_k2.vllm_plugin.metrics.row_probe import row_probe
from scripts.bundled_samples.ordinary import TOOLS
from tests.vllm_plugin.examining import ExaminingEngine, expected_row
from tests.vllm_plugin.masks import mask_after
from tests.vllm_plugin.patched import patch_vllm
from tests.vllm_plugin.scheduling import admitted, config_of, drafter
from tests.walks import walk

SPEC = {"tools": list(TOOLS[:3]), "tool_choice": "required"}
PARAMETERS = [tool["function"].get("parameters", {}) for tool in TOOLS[:3]]
LENGTH = 110
PROMPT = [1] * 20


def engine_of(
    model: Path, vocabulary: Vocabulary, *, interval: int, asynchronous: bool = False, blocks: int = 512, **fields: Any
) -> ExaminingEngine:
    patch_vllm()
    row_probe.take()
    ours = {"constrained_k2": {"route": "structured_output", "argmax_sample_interval": interval}}
    config = config_of(model, additional_config=ours, max_model_len=160, **fields)
    return ExaminingEngine(config, asynchronous=asynchronous, blocks=blocks, size=vocabulary.size)


def scripts_of(vocabulary: Vocabulary, count: int) -> dict[str, list[int]]:
    """Whole turns of one call or more, the longest ones that are no longer than ``LENGTH`` tokens."""
    compiled = Compiler(vocabulary).compile(ToolCallSpec.from_openai(SPEC))
    turns = [walk(compiled.matcher(), vocabulary, seed, PARAMETERS) for seed in range(60)]
    fitting = sorted((ids for ids in turns if len(ids) <= LENGTH), key=len)[-count:]
    assert len(fitting) == count
    return {str(number): ids for number, ids in enumerate(fitting)}


def check(vocabulary: Vocabulary, rows: list[ExaminedRow], ids: list[int], *, every: bool) -> None:
    """Compare a turn's rows with those made one by one; with ``every``, each position has one."""
    written = {row.position: row for row in rows if row.is_written_after(ids)}
    if every:
        assert sorted(written) == list(range(len(ids)))
    for at, row in written.items():
        expected = expected_row(at, ids[:at], mask_after(vocabulary, SPEC, ids[:at]), vocabulary.size)
        assert (row.is_overridden, row.allowed) == (expected.is_overridden, expected.allowed), at
        assert row.wanted == expected.wanted or not row.is_overridden  # else several may be equally likely
        assert math.isclose(row.probability, expected.probability, rel_tol=1e-4)
        assert math.isclose(row.forbidden, expected.forbidden, rel_tol=1e-3, abs_tol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("speculative", [False, True])
def test_every_override_is_found_and_none_is_invented(
    model: Path, vocabulary: Vocabulary, *, speculative: bool, asynchronous: bool
) -> None:
    """With drafts that are right, wrong or padding; rows after a wrong one are never sampled from."""
    given: dict[str, Any] = {} if speculative else {"speculative_config": None}
    engine = engine_of(model, vocabulary, interval=0, asynchronous=asynchronous, **given)
    scripts = scripts_of(vocabulary, 3)
    for name, ids in scripts.items():
        engine.add(name, admitted(vocabulary, SPEC, max_tokens=len(ids)), ids, PROMPT)
        engine.manager.gathered.add_request(name, {ROWS_KEY: f"key {name}"} if name != "2" else None)
    chance = random.Random(5)
    draft = drafter(scripts, chance, vocabulary)

    def drafted(name: str, written: int) -> list[int]:
        """As others draft, but every other one is wrong and legal within strings."""
        drafts = draft(name, written)
        return [ord("a"), ord("b")] if chance.random() < 0.5 else drafts

    engine.run(drafted if speculative else lambda *_: [])
    assert set(engine.sent) == {"key 0", "key 1"}
    overridden = after_drafts = rejected = 0
    for name in ("0", "1"):
        rows, ids = engine.sent[f"key {name}"], scripts[name]  # drafts may run past the end
        check(vocabulary, rows, ids, every=True)
        overridden += sum(row.is_overridden for row in rows)
        after_drafts += sum(bool(row.drafts) for row in rows)
        rejected += sum(not row.is_written_after(ids) for row in rows)
    assert overridden > 20
    assert bool(after_drafts) == speculative
    # Under asynchronous scheduling the drafts that come in time, wrong ones among them, depend on the machine.
    assert bool(rejected) == speculative or asynchronous, "no draft was wrong"
    gathered = engine.manager.gathered
    assert not (gathered._asking or gathered._counts or gathered._unsent)


def test_rows_of_requests_that_are_preempted_or_aborted(model: Path, vocabulary: Vocabulary) -> None:
    engine = engine_of(model, vocabulary, interval=0, blocks=9)
    scripts = scripts_of(vocabulary, 4)
    requests = []
    for name, ids in scripts.items():
        requests.append(engine.add(name, admitted(vocabulary, SPEC, max_tokens=len(ids)), ids, PROMPT))
        engine.manager.gathered.add_request(name, {ROWS_KEY: name})
    aborted, draft = requests[-1], drafter(scripts, random.Random(3), vocabulary)

    def drafted(name: str, written: int) -> list[int]:
        if len(engine.outputs["3"]) > 5 and not aborted.is_finished():
            engine.scheduler.finish_requests("3", RequestStatus.FINISHED_ABORTED)
        return draft(name, written)

    engine.run(drafted)
    assert sum(request.num_preemptions for request in requests) > 0, "no request was preempted"
    for name in ("0", "1", "2"):
        check(vocabulary, engine.sent[name], scripts[name], every=True)
    check(vocabulary, engine.sent["3"], engine.outputs["3"], every=False)
    assert not engine.manager.gathered._asking


def test_nothing_is_examined_where_it_is_off(model: Path, vocabulary: Vocabulary) -> None:
    engine = engine_of(model, vocabulary, interval=0)
    scripts = scripts_of(vocabulary, 1)
    engine.add("0", admitted(vocabulary, SPEC, max_tokens=LENGTH), scripts["0"], PROMPT)
    engine.run()
    assert row_probe.take() == []
