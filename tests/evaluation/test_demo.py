"""``ab --serve``: its servers, its arms and how a run resumes; and the demo, which uses it."""

import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import constrained_k2
from constrained_k2 import Vocabulary
from constrained_k2.cli.reading import WIRE_FORMATS
from constrained_k2.evaluation.ab import serving
from constrained_k2.evaluation.ab.directory import Sampling, begin
from constrained_k2.evaluation.ab.results import score
from constrained_k2.evaluation.ab.runner import AttemptLimits
from constrained_k2.evaluation.ab.serving import SERVERS, Sending
from constrained_k2.testing.tokenizer import WireFormatName
from scripts import demo
from scripts.small_model.shipped import SMALL_MODELS, build_small_model, held_out_samples
from scripts.smollm2.base import GGUF
from scripts.smollm2.questions import WHEEL
from tests.evaluation.fake_endpoint import FakeEndpoint
from tests.kit.data import fetched


@pytest.mark.parametrize("builtin", ["kimi_k2", "kimi_k3"])
def test_every_arm_is_asked_once_whatever_ended_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builtin: WireFormatName
) -> None:
    started: list[tuple[str, str, str | None]] = []
    wire_format = SMALL_MODELS[builtin].wire_format

    def serve(model: Path, flags: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> FakeEndpoint:
        assert Vocabulary.from_pretrained(model).format.name == wire_format.name
        assert (model / "model.safetensors").exists()
        started.append((log.stem, flags[flags.index("--tool-call-parser") + 1], environment.get("VLLM_PLUGINS")))
        return FakeEndpoint()

    monkeypatch.setattr(serving, "VllmServer", serve)
    directory = begin(tmp_path / "run", "test", held_out_samples(6, wire_format=builtin), Sampling(), wire_format)
    model = build_small_model(tmp_path / "model", builtin)
    sending = Sending(directory, AttemptLimits(), is_shown=False, say=lambda _: None)
    sending.serve(model, SERVERS[wire_format.name][:1])  # as if it had been ended before the second server
    sending.serve(model)
    sending.serve(model)
    assert started == [("constrained_k2", "kimi_constrained", None), ("vllm_strict", builtin, "none")]
    assert list(directory.arms) == ["unconstrained", "constrained", "nearest", "vllm-strict"]
    assert all(len(directory.done_keys(arm)) == 6 for arm in directory.arms)
    results = score(directory)
    assert results.baseline == "unconstrained"
    assert int(results.paired.sum()) == 6


def test_every_format_of_the_command_line_has_servers_and_a_demo() -> None:
    assert SERVERS.keys() == {known.name for known in WIRE_FORMATS.values()}
    assert {model.wire_format.name for model in SMALL_MODELS.values()} == SERVERS.keys()
    for flags in (server.flags for server in SERVERS["Kimi K3"]):
        for flag in ("--tokenizer-mode", "--reasoning-parser"):
            assert flags[flags.index(flag) + 1] == "kimi_k3"
    for plain, xtml in zip(held_out_samples(5), held_out_samples(5, wire_format="kimi_k3"), strict=True):
        assert xtml.body == plain.body | {"chat_template_kwargs": {"thinking": False}}  # as in training


def broken(model: Path, _flags: Sequence[str], **_: object) -> None:
    assert (model / "model.safetensors").exists()
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
    monkeypatch.setattr(serving, "VllmServer", broken)
    assert demonstrate(monkeypatch, wire_format, 2, tmp_path) == 2
    assert "vLLM on this machine: the server ended with 1" in capsys.readouterr().err
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == 2
    assert Vocabulary.from_pretrained(tmp_path / "model").format.name == WIRE_FORMATS[wire_format].name


def test_the_package_is_small() -> None:
    paths = Path(constrained_k2.__file__).parent.rglob("*")
    files = (path.read_bytes() for path in paths if path.is_file() and path.suffix != ".pyc")
    assert sum(len(lzma.compress(content, preset=1)) for content in files) < 1_200_000


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
