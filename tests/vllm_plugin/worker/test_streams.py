"""The order of calls to CUDA's streams and events, on fakes: there is no GPU in these tests."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from constrained_k2.vllm_plugin.worker.host_copy import HostCopy


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
