"""Calls are declined exactly where the model hardly means them: on vLLM's own schedulers, and in logits processors."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from constrained_k2 import Compiler, ToolCallSpec, Vocabulary, parse_completion
from constrained_k2.request.undeclared_calls import CALL_THRESHOLD
from constrained_k2.vllm_plugin import KimiK2LogitsProcessor
from constrained_k2.vllm_plugin.shared.counters import EngineCounters
from constrained_k2.vllm_plugin.worker import row_masks
from constrained_k2.vllm_plugin.worker.device_masks import DeviceMasks
from tests.kit.budget import SEED, tries
from tests.kit.tools import tool
from tests.vllm_plugin.declining import Speaker, SpeakingEngine, spoken
from tests.vllm_plugin.scheduling import admitted, config_of, drafter, turn_of
from tests.vllm_plugin.served import CPU, asking, update, vllm_config

NAMES = ("get_weather", "get_time", "search")
BODY: dict[str, Any] = {"tools": [tool(name, {"type": "object", "additionalProperties": False}) for name in NAMES]}
THRESHOLD = CALL_THRESHOLD
LIMIT = 100


def speakers_of(vocabulary: Vocabulary, seed: int, count: int) -> dict[str, Speaker]:
    """Turns of two calls; a doubt at the first, a middle or the last token of a name, or at any token."""
    chance = random.Random(seed)
    compiled = Compiler(vocabulary, undeclared_calls="decline").compile(ToolCallSpec.from_openai(BODY))
    found = {}
    for number in range(count):
        script = turn_of(vocabulary, *((chance.choice(NAMES), "{}") for _ in range(2)), text="Hi")
        matcher, names = compiled.matcher(), [list[int](), list[int]()]
        for at, token in enumerate(script):
            if matcher.intent() is not None:
                names[matcher.num_calls].append(at)
            assert matcher.accept_tokens([token])
        name = chance.choice(names)
        at = (name[0], name[len(name) // 2], name[-1], chance.randrange(len(script)))[number % 4]
        share = (0.1, 0.6, 0.3, 0.4)[number // 4 % 4]  # two of them are below the threshold
        found[str(number)] = Speaker(script, vocabulary.size, {at: share})
    return found


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(
    ("drafts", "blocks", "threshold"),
    [(False, 512, THRESHOLD), (True, 512, THRESHOLD), (True, 8, THRESHOLD), (False, 512, 0.0), (False, 512, 0.5)],
)
def test_the_structured_output_route(
    model: Path, vocabulary: Vocabulary, counters: EngineCounters, choice: str, blocks: int, threshold: float, *,
    asynchronous: bool, drafts: bool,
) -> None:  # fmt: skip
    """The turns are those of the slow and obvious way, through drafts, rollback and preemption."""
    speculation = {} if drafts else {"speculative_config": None}
    ours = {"constrained_k2": {"route": "structured_output", "call_threshold": threshold}}
    config = config_of(model, max_model_len=160, additional_config=ours, **speculation)
    engine = SpeakingEngine(config, asynchronous=asynchronous, blocks=blocks)
    body = BODY | {"tool_choice": choice}
    declined = 0
    expected = {}
    engine.speakers = speakers_of(vocabulary, SEED, tries(24, fast=16))
    if choice == "required":  # without text before the section
        for speaker in engine.speakers.values():
            speaker.script = speaker.script[speaker.script.index(vocabulary.format.section_begin) :]
    requests = []
    for name, speaker in engine.speakers.items():
        # One request fits into seven blocks of 16 tokens, with its drafts; two long ones do not.
        requests.append(engine.add(name, admitted(vocabulary, body, max_tokens=LIMIT), speaker.script, [1] * 6))
        expected[name] = spoken(speaker, body, vocabulary, threshold, LIMIT)
        declined += len(parse_completion(expected[name], vocabulary).declined)
    scripts = {name: speaker.script for name, speaker in engine.speakers.items()}
    draft = drafter(scripts, random.Random(SEED), vocabulary)
    engine.run(draft if drafts else lambda *_: [])
    for name, ids in expected.items():
        assert engine.outputs[name][: len(ids)] == ids
    assert blocks > 100 or sum(request.num_preemptions for request in requests) > 0
    assert counters.declined_calls == declined
    assert bool(declined) == (choice == "auto" and threshold > 0)
    assert not counters.unmeant_calls or choice == "required"


def test_calls_that_are_required_and_not_meant_are_counted_once(
    model: Path, vocabulary: Vocabulary, counters: EngineCounters
) -> None:
    engine = SpeakingEngine(config_of(model, speculative_config=None), asynchronous=False)
    body = BODY | {"tool_choice": "required"}
    script = turn_of(vocabulary, ("get_time", "{}"))
    first = script.index(vocabulary.format.call_begin) + 1
    doubts = {first: 0.1, first + 2: 0.1}
    engine.speakers = {"a": Speaker(script, vocabulary.size, doubts), "b": Speaker(script, vocabulary.size, {})}
    for name in engine.speakers:
        engine.add(name, admitted(vocabulary, body, max_tokens=LIMIT), script)
    engine.run()
    assert (counters.unmeant_calls, counters.declined_calls) == (1, 0)


@pytest.mark.parametrize("device", ["host", "device"])
def test_the_logits_processor_of_the_v1_runner(
    model: Path, vocabulary: Vocabulary, counters: EngineCounters, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """The same turns, whether masks are applied in host memory or as on a device."""
    if device == "device":
        made = DeviceMasks(vocabulary.size, 8, CPU, pin=False)
        monkeypatch.setattr("constrained_k2.vllm_plugin.worker.logits_processor_v1.row_masks", lambda *_, **__: made)
    processor = KimiK2LogitsProcessor(vllm_config(model, vocabulary, additional_config={}), CPU, is_pin_memory=False)
    declined = 0
    for seed in range(tries(24, fast=4)):
        speakers = list(speakers_of(vocabulary, SEED + seed, 4).values())
        outputs: list[list[int]] = [[] for _ in speakers]
        processor.update_state(update(added=[(row, asking(BODY), [1], output) for row, output in enumerate(outputs)]))
        for _ in range(LIMIT):
            logits = torch.stack([speaker.logits(ids) for speaker, ids in zip(speakers, outputs, strict=True)])
            chosen = processor.apply(logits).argmax(dim=1).tolist()
            for ids, token in zip(outputs, chosen, strict=True):
                ids.append(token)
            processor.update_state(None)
        for speaker, ids in zip(speakers, outputs, strict=True):
            expected = spoken(speaker, BODY, vocabulary, THRESHOLD, LIMIT)
            assert ids[: len(expected)] == expected
            declined += len(parse_completion(expected, vocabulary).declined)
    assert counters.declined_calls == declined > 0


def test_calls_of_a_logits_processor_are_counted_once_each(
    model: Path, vocabulary: Vocabulary, counters: EngineCounters
) -> None:
    """One request after the other, whose objects may get the same address; and one that comes back preempted."""
    processor = KimiK2LogitsProcessor(vllm_config(model, vocabulary, additional_config={}), CPU, is_pin_memory=False)
    markers = vocabulary.format
    begun = [markers.section_begin, markers.call_begin, *vocabulary.encode("functions.")]

    def enter(body: Any, output: list[int]) -> None:
        processor.update_state(update(added=[(0, asking(body), [1], output)]))
        processor.apply(torch.zeros(1, vocabulary.size))

    for _ in range(5):
        enter(BODY | {"tool_choice": "required"}, list(begun))
    vars(row_masks)["declining"].count()
    assert (counters.unmeant_calls, counters.declined_calls) == (5, 0)
    output = list(begun)
    enter(BODY, output)
    output.append(markers.section_end)
    processor.apply(torch.zeros(1, vocabulary.size))
    assert counters.declined_calls == 1
    enter(BODY, output)
    assert counters.declined_calls == 1
