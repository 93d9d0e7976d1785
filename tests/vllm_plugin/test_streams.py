"""The order of calls to CUDA's streams and events, on fakes: there is no GPU in these tests."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch

from constrained_k2.vllm_plugin.worker.host_copy import HostCopy
from constrained_k2.vllm_plugin.worker.row_masks import RowMasks
from constrained_k2.vocabulary.bitmask import TokenSet


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls in their order."""
    log: list[str] = []
    main = SimpleNamespace(wait_event=lambda event: log.append("main waits for the copy"))
    side = SimpleNamespace(wait_stream=lambda stream: log.append("side waits for main"))
    event = SimpleNamespace(record=lambda *stream: log.append("recorded"), synchronize=lambda: log.append("host waits"))

    @contextmanager
    def stream(entered: Any) -> Any:
        assert entered is side
        log.append("in side")
        yield
        log.append("out of side")

    monkeypatch.setattr(torch.cuda, "Stream", lambda *device: side)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *device: main)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    return log


def gpu() -> Any:
    return SimpleNamespace(type="cuda")


def test_a_copy_waits_for_the_past_and_only_its_reader_waits_for_it(asked: list[str]) -> None:
    copy, location = HostCopy(gpu()), torch.zeros(3)
    copy.before_overwriting()
    copy.start((torch.ones(3), location))
    assert asked == ["main waits for the copy", "side waits for main", "in side", "recorded", "out of side"]
    assert location.tolist() == [1, 1, 1]
    copy.wait()
    assert asked[-1] == "host waits"


def test_on_a_cpu_nothing_is_asked(asked: list[str]) -> None:
    copy, location = HostCopy(torch.device("cpu")), torch.zeros(3)
    copy.before_overwriting()
    copy.start((torch.ones(3), location))
    copy.wait()
    assert location.tolist() == [1, 1, 1]
    assert not asked


def test_masks_on_their_way_are_not_overwritten(asked: list[str]) -> None:
    masks = RowMasks(64, 4, torch.device("cpu"), 0, pin=False)
    masks._on_gpu = True
    logits = torch.zeros(4, 64)

    def step() -> None:
        masks.begin()
        masks.add_constant(0, TokenSet([1], 64))
        masks.apply(logits)
        masks.add_constant(1, TokenSet([2], 64))  # in the same step: further rows of the buffers
        masks.apply(logits)

    step()
    assert asked == ["recorded", "recorded"]
    step()
    assert asked[2:] == ["host waits", "recorded", "recorded"]
    assert logits[0, 1] == logits[1, 2] == 0
    assert torch.isfinite(logits).sum(dim=1).tolist() == [1, 1, 64, 64]


def test_more_constant_sets_than_there_is_room_for() -> None:
    masks = RowMasks(256, 1, torch.device("cpu"), 0, pin=False)
    for token in range(150):
        masks.begin()
        logits = torch.zeros(1, 256)
        masks.add_constant(0, TokenSet([token], 256))
        masks.apply(logits)
        assert torch.nonzero(logits[0] == 0).flatten().tolist() == [token]
