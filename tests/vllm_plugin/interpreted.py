"""The V2 logits processor against vLLM's own V2 classes; run by test_processor_v2.py in a process of its own."""

import tests.kit.triton_on_cpu  # isort: skip # noqa: F401 - before vLLM
import vllm.v1.worker.cpu.shm  # isort: skip # noqa: F401 - vLLM's CPU worker replaces parts of the V2 runner there

import random
from pathlib import Path

import pytest
import torch
from vllm.v1.worker.gpu.spec_decode import rejection_sampler

from constrained_k2 import Compiler, Vocabulary
from constrained_k2.kernels import triton_kernel
from constrained_k2.vllm_plugin.shared import row_plan
from constrained_k2.vllm_plugin.shared.counters import engine_counters
from constrained_k2.vllm_plugin.shared.matcher_factory import MatcherFactory
from constrained_k2.vllm_plugin.shared.row_plan import SAMPLED_ROWS
from constrained_k2.vllm_plugin.shared.row_probe import row_probe
from constrained_k2.vllm_plugin.worker import device_masks, logits_processor_v2
from constrained_k2.vllm_plugin.worker.device_masks import DeviceMasks
from constrained_k2.vllm_plugin.worker.logits_processor_v2 import KimiK2LogitsProcessorV2
from tests.kit.budget import LEVEL
from tests.kit.tools import tool
from tests.vllm_plugin.served import asking, vllm_config
from tests.vllm_plugin.v2_engine import V2Engine
from tests.vllm_plugin.v2_reference import BODIES, Reference, check_masks


@pytest.fixture(scope="module")
def compiler(vocabulary: Vocabulary) -> Compiler:
    return Compiler(vocabulary)


@pytest.fixture
def slots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mask as on a GPU, by the kernel in Triton's interpreter, with room for so few masks; None: in host memory."""
    if request.param is None:
        return

    def on_device(factory: MatcherFactory, rows: int, device: torch.device, *, pin: bool) -> DeviceMasks:
        masks = DeviceMasks(factory.vocabulary.size, rows, device, pin=pin, slots=request.param)
        masks.warm_up(factory.vocabulary.size)
        return masks

    monkeypatch.setattr(row_plan, "INTERVAL", 1)
    monkeypatch.setattr(logits_processor_v2, "row_masks", on_device)
    monkeypatch.setattr(device_masks, "apply_masks", triton_kernel.apply_masks)


ON_HOST = [(None, 0, 1, 1.0), (None, 4, 2, 0.0), (None, 1, 3, 0.0), (None, 4, 4, 1.0)]
ON_A_DEVICE = [(2, *rest) for _, *rest in ON_HOST]
BATCHES = ON_HOST + ON_A_DEVICE if LEVEL == "all" else ON_HOST[:2] + ON_A_DEVICE[-1:]


@pytest.fixture
def engine(model: Path, vocabulary: Vocabulary) -> V2Engine:
    """An engine without drafts."""
    return V2Engine(vllm_config(model, vocabulary), vocabulary.size)


def examining_every_step(model: Path, vocabulary: Vocabulary, drafts: int) -> V2Engine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_plan, "INTERVAL", 1)
        return V2Engine(vllm_config(model, vocabulary, drafts), vocabulary.size, drafts)


@pytest.mark.usefixtures("slots")
@pytest.mark.parametrize(("slots", "drafts", "seed", "temperature"), BATCHES, indirect=["slots"])
def test_random_batches(
    model: Path, vocabulary: Vocabulary, compiler: Compiler, drafts: int, seed: int, temperature: float
) -> None:
    """Requests come and go, share slots, are preempted and resumed; drafts are right, wrong or not there.

    On a device masks are kept, evicted and come again meanwhile.
    """
    chance = random.Random(f"{seed} {drafts} {temperature}")
    torch.manual_seed(seed)
    engine = examining_every_step(model, vocabulary, drafts)
    assert isinstance(engine.processor, KimiK2LogitsProcessorV2)
    markers = vocabulary.format
    waiting: dict[str, Reference] = {}
    for number in range(14):
        prompt = [chance.randrange(200) for _ in range(chance.randint(1, 5))]
        if number % 3 == 0:
            prompt.append(markers.think_begin)
        body = chance.choice(BODIES)
        waiting[f"r{number}"] = Reference(compiler, body, prompt, temperature=temperature, seed=number)
    running: dict[str, Reference] = {}
    everything = dict(waiting)
    compared = accepted = 0
    for _ in range(40):
        for name in list(running):
            done = running[name].output and running[name].output[-1] in markers.stop_ids
            if done or len(running[name].output) > 120:
                engine.remove(name)
                del running[name]
            elif chance.random() < 0.03:  # preempted
                engine.remove(name)
                waiting[name] = running.pop(name)
        entering = {}
        while waiting and len(running) < 4 and chance.random() < 0.7:
            name, request = waiting.popitem()
            running[name] = request
            entering[name] = (request.params, len(request.prompt), request.prompt + request.output)
        engine.begin(entering)
        batch = [
            name for name in chance.sample(list(running), len(running)) if name in entering or chance.random() < 0.9
        ]
        if not batch:
            continue
        given = {}
        for name in batch:
            if drafts and name not in entering and chance.random() < 0.8:
                given[name] = make_drafts(running[name], chance, chance.randint(1, drafts), engine.size)
        rows = sum(len(given.get(name, [])) + 1 for name in batch)
        logits = torch.randn(rows, engine.size)
        push(logits, batch, given, chance)
        before = logits.clone()
        sampled = engine.step(batch, logits, given)
        check_masks(engine, running, batch, given, before)
        check_examined(running, batch, given, before)
        compared += rows
        for name, ids in sampled.items():
            assert ids
            kept = cut(ids, markers.stop_ids)
            accepted += len(kept) - 1
            running[name].take(kept)
    assert compared > 60
    assert accepted > 5 or not drafts
    assert any(len(each.output) > 10 for each in everything.values())


def check_examined(
    requests: dict[str, Reference], batch: list[str], drafts: dict[str, list[int]], logits: torch.Tensor
) -> None:
    """At most four masked rows of a step are examined; all of them if there are no more than four."""
    masked = changed = start = 0
    for name in batch:
        given = drafts.get(name, [])
        for offset in range(len(given) + 1):
            allowed = requests[name].allowed(given[:offset])
            if allowed is not None:
                masked += 1
                changed += int(logits[start + offset].argmax()) not in allowed
        start += len(given) + 1
    row_probe.count()
    found = engine_counters.examined_rows, engine_counters.changed_rows
    engine_counters.examined_rows = engine_counters.changed_rows = 0
    assert found == (masked, changed) if masked <= SAMPLED_ROWS else found[0] == SAMPLED_ROWS


def make_drafts(request: Reference, chance: random.Random, count: int, size: int) -> list[int]:
    """Tokens that the request may take, until now and then one that it may not."""
    ids: list[int] = []
    while len(ids) < count:
        allowed = request.allowed(ids)
        legal = allowed is not None and chance.random() < 0.85
        ids.append(chance.choice(sorted(allowed)) if legal and allowed else chance.randrange(size))
    return ids


def push(logits: torch.Tensor, batch: list[str], drafts: dict[str, list[int]], chance: random.Random) -> None:
    """Have the model agree with most drafts."""
    row = 0
    for name in batch:
        for token in drafts.get(name, []):
            if chance.random() < 0.8:
                logits[row, token] += 30
            row += 1
        row += 1


def cut(ids: list[int], stops: tuple[int, ...]) -> list[int]:
    """Return the tokens of a step that vLLM's scheduler keeps."""
    end = next((location for location, token in enumerate(ids) if token in stops), len(ids))
    return ids[: end + 1]


def test_a_large_batch_with_drafts_comes_in_several_calls(
    model: Path, vocabulary: Vocabulary, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejection_sampler, "get_max_chunk_logits", lambda size: 4)
    engine = V2Engine(vllm_config(model, vocabulary, 2), vocabulary.size, 2)
    markers = vocabulary.format
    requests = {f"r{number}": Reference(compiler, BODIES[0], [5], temperature=0.0) for number in range(3)}
    engine.begin({name: (request.params, 1, [5]) for name, request in requests.items()})
    for name, ids in engine.step([*requests], torch.randn(3, engine.size)).items():
        requests[name].take(ids)
    assert len(engine.recorder.steps) == 1
    engine.begin({})
    drafts = [markers.call_begin, vocabulary.encode("functions.f:0")[0]]
    sampled = engine.step([*requests], torch.randn(9, engine.size), dict.fromkeys(requests, drafts))
    assert len(engine.recorder.steps) > 2
    for name, ids in sampled.items():
        requests[name].take(ids)
        assert ids[0] == markers.call_begin and len(ids) > 1  # the only token that may follow: the draft was accepted


def test_chunked_prefill(engine: V2Engine, vocabulary: Vocabulary, compiler: Compiler) -> None:
    request = Reference(compiler, BODIES[0], [5] * 9)
    engine.begin({"r": (request.params, 9, request.prompt)})
    for _ in range(2):
        assert engine.step(["r"], torch.zeros(1, engine.size), chunks={"r": 4}) == {"r": []}
        engine.begin({})
    sampled = engine.step(["r"], torch.zeros(1, engine.size))
    assert sampled == {"r": [vocabulary.format.section_begin]}


def test_nothing_is_fetched_where_nothing_is_constrained(
    engine: V2Engine, vocabulary: Vocabulary, compiler: Compiler
) -> None:
    assert isinstance(engine.processor, KimiK2LogitsProcessorV2)
    fetches = []
    fetch = engine.processor._history.fetch
    engine.processor._history.fetch = lambda *also: fetches.append(also) or fetch(*also)  # type: ignore[method-assign]
    other = Reference(compiler, None, [6])
    engine.begin({"other": (other.params, 1, [6])})
    for _ in range(3):
        engine.step(["other"], torch.randn(1, engine.size))
        engine.begin({})
    assert not fetches
    request = Reference(compiler, BODIES[0], [5])
    engine.begin({"r": (request.params, 1, [5])})
    engine.step(["other", "r"], torch.randn(2, engine.size))
    engine.remove("r")  # the processor is not told
    for _ in range(5):
        engine.begin({})
        engine.step(["other"], torch.randn(1, engine.size))
    assert len(fetches) == 2  # as it entered, and once in case it went on


def test_min_tokens_never_leave_a_row_empty(engine: V2Engine, vocabulary: Vocabulary, compiler: Compiler) -> None:
    markers = vocabulary.format
    stops = [*markers.stop_ids, markers.section_begin, markers.call_begin]
    request = Reference(compiler, BODIES[0], [5], min_tokens=50, max_tokens=99, stop_token_ids=stops, temperature=1.0)
    engine.begin({"r": (request.params, 1, [5])})
    for _ in range(2):
        request.take(engine.step(["r"], torch.randn(1, engine.size))["r"])
        engine.begin({})
    assert request.output == [markers.section_begin, markers.call_begin]


@pytest.mark.parametrize("drafts", [0, 3])
def test_a_bad_request_ends_alone(model: Path, vocabulary: Vocabulary, compiler: Compiler, drafts: int) -> None:
    engine = examining_every_step(model, vocabulary, drafts)
    unbuilt = {"type": "object", "properties": {"a": False}, "required": ["a"]}
    late = asking({"tools": [tool("f", unbuilt, strict=True)], "tool_choice": "required"})
    bad = asking(extra={"constrained_k2": "{"})
    good = Reference(compiler, BODIES[0], [5])
    engine.begin({"bad": (bad, 1, [5]), "late": (late, 1, [5]), "good": (good.params, 1, [5])})
    markers = vocabulary.format
    written: list[int] = []
    header = [markers.section_begin, markers.call_begin, *vocabulary.encode("functions.f:0"), markers.argument_begin]
    for step in range(len(header) + 2):
        logits = torch.randn(3, engine.size)
        if step < len(header):
            logits[1, header[step]] += 100
        sampled = engine.step(["bad", "late", "good"], logits)
        assert sampled["bad"] == [markers.turn_end]
        written += sampled["late"]
        good.take(sampled["good"])
        engine.begin({})
    assert written == [*header, markers.turn_end, markers.turn_end]
    assert good.matcher is not None and good.matcher.num_tokens > 0


def test_drafts_of_a_failed_request(model: Path, vocabulary: Vocabulary, compiler: Compiler) -> None:
    engine = V2Engine(vllm_config(model, vocabulary, 3), vocabulary.size, 3)
    bad = asking(extra={"constrained_k2": "{"}, temperature=0.0)
    engine.begin({"bad": (bad, 1, [5])})
    engine.step(["bad"], torch.randn(1, engine.size))
    engine.begin({})
    sampled = engine.step(["bad"], torch.randn(4, engine.size), {"bad": [7, -1, 8]})
    assert sampled == {"bad": [vocabulary.format.turn_end]}
