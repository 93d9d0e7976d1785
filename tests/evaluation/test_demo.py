"""``ab --serve``: its servers, its arms and how a run resumes; and the demo, which uses it."""

import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import pytest

import constrained_k2
from constrained_k2 import Vocabulary
from constrained_k2.cli import main
from constrained_k2.cli.reading import WIRE_FORMATS
from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation.ab import serving
from constrained_k2.evaluation.ab.directory import Sampling, begin
from constrained_k2.evaluation.ab.report.examples import contrast
from constrained_k2.evaluation.ab.results import score
from constrained_k2.evaluation.ab.runner import AttemptLimits
from constrained_k2.evaluation.ab.serving import SERVERS, Sending
from constrained_k2.evaluation.answer import SUCCESS
from constrained_k2.testing.tokenizer import WireFormatName
from scripts import demo
from scripts.small_model.shipped import SMALL_MODELS, build_small_model, held_out_samples
from scripts.smollm2.base import GGUF
from scripts.smollm2.questions import WHEEL
from tests.evaluation.fake_endpoint import FakeEndpoint
from tests.evaluation.test_ab_results import BAD, GOOD, saved
from tests.kit.data import fetched


class FakeServer:
    """Replaces vLLM: keeps what it was started with, and answers as the fake endpoint does."""

    started: ClassVar[list[tuple[str, str, str | None]]] = []
    model_family: ClassVar[str] = "Kimi K2"

    def __init__(self, model: Path, flags: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> None:
        assert Vocabulary.from_pretrained(model).format.name == self.model_family
        assert (model / "model.safetensors").exists()
        self.started.append((log.stem, flags[flags.index("--tool-call-parser") + 1], environment.get("VLLM_PLUGINS")))
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


K2, K3 = SMALL_MODELS["kimi_k2"].wire_format, SMALL_MODELS["kimi_k3"].wire_format


@pytest.mark.parametrize("builtin", ["kimi_k2", "kimi_k3"])
def test_every_arm_is_asked_once_whatever_ended_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builtin: WireFormatName
) -> None:
    monkeypatch.setattr(serving, "VllmServer", FakeServer)
    monkeypatch.setattr(FakeServer, "started", [])
    wire_format = SMALL_MODELS[builtin].wire_format
    monkeypatch.setattr(FakeServer, "model_family", wire_format.name)
    directory = begin(tmp_path / "run", "test", held_out_samples(6, wire_format=builtin), Sampling(), wire_format)
    model = build_small_model(tmp_path / "model", builtin)
    sending = Sending(directory, AttemptLimits(), is_shown=False, say=lambda _: None)
    sending.serve(model, SERVERS[wire_format.name][:1])  # as if it had been ended before the second server
    sending.serve(model)
    sending.serve(model)
    assert FakeServer.started == [("constrained_k2", "kimi_constrained", None), ("vllm_strict", builtin, "none")]
    assert list(directory.arms) == ["unconstrained", "constrained", "nearest", "vllm-strict"]
    assert all(len(directory.done_keys(arm)) == 6 for arm in directory.arms)
    results = score(directory)
    assert results.baseline == "unconstrained"
    assert int(results.paired.sum()) == 6


def test_every_format_of_the_command_line_has_servers_and_a_demo() -> None:
    assert SERVERS.keys() == {known.name for known in WIRE_FORMATS.values()}
    assert {model.wire_format.name for model in SMALL_MODELS.values()} == SERVERS.keys()
    for flags in (server.flags for server in SERVERS[K3.name]):
        for flag in ("--tokenizer-mode", "--reasoning-parser"):
            assert flags[flags.index(flag) + 1] == "kimi_k3"
    for plain, xtml in zip(held_out_samples(5), held_out_samples(5, wire_format="kimi_k3"), strict=True):
        assert xtml.body == plain.body | {"chat_template_kwargs": {"thinking": False}}  # as in training


def test_a_run_goes_on_with_the_same_models_alone(tmp_path: Path) -> None:
    begin(tmp_path / "run", "test", held_out_samples(2), Sampling(), K2)
    with pytest.raises(InvalidRequest, match="other models"):
        begin(tmp_path / "run", "test", held_out_samples(2), Sampling(), K3)
    assert begin(tmp_path / "run", "test", held_out_samples(2), Sampling()).wire_format == K2


class Broken(FakeServer):
    def __enter__(self) -> Self:
        raise RuntimeError("the server ended with 1")


def demonstrate(monkeypatch: pytest.MonkeyPatch, wire_format: str, count: int, output: Path) -> int:
    """Run scripts/demo.py."""
    for path in (GGUF, WHEEL) if wire_format == "kimi-k2" else ():
        fetched(path)
    options = (f"--format={wire_format}", f"--requests={count}", f"--output={output}")
    monkeypatch.setattr("sys.argv", ["demo.py", *options])
    return demo.main()


@pytest.mark.parametrize("wire_format", [pytest.param("kimi-k2", marks=pytest.mark.slow), "kimi-k3"])
def test_the_demo_makes_its_model_and_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wire_format: str
) -> None:
    monkeypatch.setattr(serving, "VllmServer", Broken)
    monkeypatch.setattr(FakeServer, "model_family", WIRE_FORMATS[wire_format].name)
    assert demonstrate(monkeypatch, wire_format, 2, tmp_path) == 2
    assert "vLLM on this machine: the server ended with 1" in capsys.readouterr().err
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == 2


def test_the_package_is_small() -> None:
    paths = Path(constrained_k2.__file__).parent.rglob("*")
    files = (path.read_bytes() for path in paths if path.is_file() and path.suffix != ".pyc")
    assert sum(len(lzma.compress(content, preset=1)) for content in files) < 1_200_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ab"], ["no server is named", "scripts/demo.sh"]),
        (["ab", "--serve", "{}"], ["holds no checkpoint", "scripts/demo.sh"]),
        (["ab", "http://x", "--serve", "{}"], ["--serve starts its own servers", "URL"]),
        (["ab", "--arm", "a=http://x", "--serve", "{}"], ["--serve starts its own servers", "--arm"]),
        (["demo", "--output", "{}"], ["the package does not hold it", "scripts/demo.sh"]),
    ],
)
def test_where_the_model_comes_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: list[str]
) -> None:
    assert main([argument.format(tmp_path) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert all(part in error for part in said), error


def test_samples_know_their_answers() -> None:
    samples = list(held_out_samples(50, seed=1))
    assert {sample.choice for sample in samples} == {"auto"}
    assert all(sample.expected is not None and sample.body["max_tokens"] for sample in samples)
    assert {len(sample.expected or ()) for sample in samples} == {0, 1, 2}
    assert samples == list(held_out_samples(50, seed=1))


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
    ("wire_format", "count"), [("kimi-k2", 8), pytest.param("kimi-k3", 12, marks=pytest.mark.only_all)]
)
def test_the_small_model_on_real_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire_format: str, count: int
) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    code = demonstrate(monkeypatch, wire_format, count, tmp_path)
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert code == int(bool(scores["findings"]))
    assert scores["paired_samples"] == count
    assert 0 <= scores["masked_argmax_share"] < 1  # the server's metrics have the names that are looked for
    figures = {arm: found["figures"] for arm, found in scores["arms"].items()}
    assert list(figures) == ["unconstrained", "constrained", "nearest", "vllm-strict"]
    for figure in ("schema_accuracy", "declared", "decoded", "valid", "numbered"):
        assert figures["constrained"][figure]["value"] == 1.0, figure
