"""The A/B without a server: its servers and arms, and that it goes on where it was."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import pytest

from constrained_k2 import Vocabulary
from constrained_k2.cli import main
from constrained_k2.cli.reading import WIRE_FORMATS
from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation.ab.directory import Sampling, begin
from constrained_k2.evaluation.ab.report.examples import contrast
from constrained_k2.evaluation.ab.results import score
from constrained_k2.evaluation.ab.runner import Limits
from constrained_k2.evaluation.answer import SUCCESS
from constrained_k2.evaluation.demo import comparison
from constrained_k2.evaluation.demo.comparison import DEMOS, DemoRun, demo_samples
from tests.evaluation.fake_endpoint import FakeEndpoint
from tests.evaluation.test_ab_results import BAD, GOOD, saved


class FakeServer:
    """Replaces vLLM: keeps what it was started with, and answers as the fake endpoint does."""

    started: ClassVar[list[tuple[str, str, Mapping[str, str]]]] = []
    model_family: ClassVar[str] = "Kimi K2"

    def __init__(self, model: Path, flags: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> None:
        assert Vocabulary.from_pretrained(model).format.name == self.model_family
        assert (model / "model.safetensors").exists()
        self.started.append((log.stem, flags[flags.index("--tool-call-parser") + 1], environment))
        self.endpoint = FakeEndpoint()

    def __enter__(self) -> Self:
        self.endpoint.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.endpoint.__exit__(kind, error, trace)

    @property
    def url(self) -> str:
        return self.endpoint.url


@pytest.mark.parametrize(("family", "builtin"), [("Kimi K2", "kimi_k2"), ("Kimi K3", "kimi_k3")])
def test_every_arm_is_asked_once_whatever_ended_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, builtin: str
) -> None:
    monkeypatch.setattr(comparison, "VllmServer", FakeServer)
    monkeypatch.setattr(FakeServer, "started", [])
    monkeypatch.setattr(FakeServer, "model_family", family)
    demo = DEMOS[family]
    directory = begin(tmp_path / "run", "test", demo.samples(6), Sampling(), demo.wire_format)
    demo_run = DemoRun(directory, Limits(), is_shown=False, say=lambda _: None)
    demo_run.run(demo.servers[:1])  # as if it had been ended before the second server
    demo_run.run()
    demo_run.run()
    assert FakeServer.started == [
        ("constrained_k2", "kimi_constrained", {}),
        ("vllm_strict", builtin, {"VLLM_PLUGINS": "none"}),
    ]
    assert list(directory.arms) == ["unconstrained", "constrained", "nearest", "vllm-strict"]
    assert all(len(directory.done_keys(arm)) == 6 for arm in directory.arms)
    results = score(directory)
    assert results.baseline == "unconstrained"
    assert int(results.paired.sum()) == 6


def test_every_format_of_the_command_line_has_a_demo() -> None:
    assert DEMOS.keys() == {known.name for known in WIRE_FORMATS.values()}
    k2, k3 = DEMOS.values()
    for server in k3.servers:
        assert [server.flags[server.flags.index(flag) + 1] for flag in ("--tokenizer-mode", "--reasoning-parser")] == [
            "kimi_k3",
            "kimi_k3",
        ]
    for plain, xtml in zip(k2.samples(5), k3.samples(5), strict=True):
        assert xtml.body == plain.body | {"chat_template_kwargs": {"thinking": False}}  # as in training


def test_a_run_goes_on_with_the_same_models_alone(tmp_path: Path) -> None:
    k2, k3 = DEMOS.values()
    begin(tmp_path / "run", "test", k2.samples(2), Sampling(), k2.wire_format)
    with pytest.raises(InvalidRequest, match="other models"):
        begin(tmp_path / "run", "test", k2.samples(2), Sampling(), k3.wire_format)
    assert begin(tmp_path / "run", "test", k2.samples(2), Sampling()).wire_format == k2.wire_format


def test_a_server_that_does_not_come_up_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(FakeServer):
        def __enter__(self) -> Self:
            raise RuntimeError("the server ended with 1")

    monkeypatch.setattr(comparison, "VllmServer", Broken)
    assert main(["ab", "--count", "2", "--output", str(tmp_path / "run"), "--json"]) == 2
    assert "vLLM on this machine: the server ended with 1" in capsys.readouterr().err


def test_samples_know_their_answers() -> None:
    samples = list(demo_samples(50, seed=1))
    assert {sample.choice for sample in samples} == {"auto"}
    assert all(sample.expected is not None and sample.body["max_tokens"] for sample in samples)
    assert {len(sample.expected or ()) for sample in samples} == {0, 1, 2}
    assert samples == list(demo_samples(50, seed=1))


def test_what_is_shown_is_wrong_in_form_and_set_right(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [{}, {"calls": (), "finish_reason": "stop"}, {"calls": BAD}, {"calls": BAD}]
    right: list[dict[str, Any]] = [{}, {}, {"calls": BAD}, {"calls": GOOD, "status": SUCCESS}]
    lines = contrast(score(saved(tmp_path, {"plain": wrong, "constrained": right})))
    assert lines[0].startswith("request 4: #3")
    assert not any(character in "".join(lines) for character in "\x1b\u202e\ud800\n")
    assert lines[1:] == [
        "plain: get_weather: $.city: 3 is not of type 'string'",
        '  calls functions.get_weather:0 {"city": 3}',
        "constrained: right",
        '  calls functions.get_weather:0 {"city": "Oslo"}',
    ]
    assert contrast(score(saved(tmp_path / "good", {"plain": [{}], "constrained": [{}]}))) == []
    assert contrast(score(saved(tmp_path / "plain", {"plain": wrong}))) == []


@pytest.mark.server
@pytest.mark.parametrize(
    ("wire_format", "count"), [("kimi-k2", 24), pytest.param("kimi-k3", 12, marks=pytest.mark.only_all)]
)
def test_the_demo_model_on_real_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wire_format: str, count: int
) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    command = ["ab", "--format", wire_format, "--count", str(count), "--output", str(tmp_path / "run"), "--json"]
    code = main(command)
    scores = json.loads(capsys.readouterr().out)
    assert code == int(bool(scores["findings"]))
    assert scores["paired_samples"] == count
    assert 0 <= scores["masked_argmax_share"] < 1  # the server's metrics have the names that are looked for
    figures = {arm: found["figures"] for arm, found in scores["arms"].items()}
    assert list(figures) == ["unconstrained", "constrained", "nearest", "vllm-strict"]
    for figure in ("schema_accuracy", "declared", "decoded", "valid", "numbered"):
        assert figures["constrained"][figure]["value"] == 1.0, figure
