"""The doctor with real vLLM servers of random models of Kimi K2 and Kimi K3: ours, and vLLM's own parsers."""

import shlex
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2 import Vocabulary
from constrained_k2.evaluation.doctor.findings import Finding
from constrained_k2.evaluation.server import ADOPTED_FLAGS, VllmServer, rust_front_end
from constrained_k2.testing import build_model
from tests.evaluation.test_doctor import examined
from tests.kit.data import rust_front_end_binary
from tests.kit.servers import RUST, on
from tests.kit.warm import WarmServer

pytestmark = pytest.mark.server

MASKS = {"auto", "special_in_arguments"}  # of vLLM's structural tag


def with_verdict(found: dict[str, Finding], verdict: str) -> set[str]:
    return {name for name, finding in found.items() if finding.verdict == verdict}


@on("logits_processor", "kimi_k3_structured_output")
def test_our_server(server: VllmServer) -> None:
    found = examined(server)
    assert {name: finding for name, finding in found.items() if finding.verdict != "ok"} == {}
    model_family = Vocabulary.from_pretrained(server.model).format.name
    assert ("Kimi K3" in found["model"].seen) is (model_family == "Kimi K3")


@pytest.mark.only_all
@on(f"{RUST}tag_structured_output")
def test_vllms_rust_front_end_with_our_masks(server: VllmServer) -> None:
    found = examined(server)
    assert found["flags"].verdict == "ok"
    assert "constrained_k2 masks it" in found["flags"].seen
    assert found["front_end"].verdict == "warning"
    assert "n > 1, POST /v1/responses, POST /v1/messages" in found["front_end"].seen
    held = {"required", "named", "auto", "single", "arguments", "special_in_arguments", "call_ids", "stream_agrees"}
    assert {name: found[name] for name in held if found[name].verdict != "ok"} == {}
    assert "is returned with the name 'send'" in found["dotted_names"].seen
    for name in ("dotted_names", "ids_repaired", "special_tokens", "cut_calls"):
        assert found[name].verdict == "fault", name
        assert "unset VLLM_USE_RUST_FRONTEND" in found[name].remedy, name


@pytest.mark.only_all
def test_a_rust_front_end_that_sends_no_tag(tmp_path: Path) -> None:
    model = build_model(tmp_path / "model", arch="llama")
    flags = ("--enable-auto-tool-choice", "--tool-call-parser", "kimi_k2")
    environment = rust_front_end(rust_front_end_binary())
    with WarmServer(model, flags, log=tmp_path / "server.log", environment=environment) as started:
        found = examined(started)
    assert found["special_in_arguments"].verdict != "ok"  # an untrained model may write an index without end
    for name in ("flags", "auto"):
        assert found[name].verdict == "fault", name
        assert shlex.join(ADOPTED_FLAGS) in found[name].remedy, name


@on("stock")
def test_a_server_that_does_not_constrain(server: VllmServer) -> None:
    found = examined(server)
    faults = with_verdict(found, "fault")
    binding = {"required", "named", "single", "arguments", "call_ids"}
    assert faults >= binding | {"flags", "ids_repaired", "special_tokens"}
    assert all("kimi_constrained" in found[name].remedy for name in binding | {"flags"})
    right = {"model", "version", "generation_prompt", "content", "tool_results", "ids_kept", "auto_tool_choice"}
    assert with_verdict(found, "ok") >= right
    assert found["opt_out"].verdict == "cannot tell"


@on(only_all=("kimi_k3_stock",))
def test_vllms_own_parser_of_kimi_k3(server: VllmServer) -> None:
    found = examined(server)
    assert with_verdict(found, "fault") >= MASKS | {
        "flags",
        "required",
        "arguments",
        "strict_refused",
        "results_paired",
    }
    flags = "--tool-call-parser kimi_constrained --reasoning-parser kimi_k3"
    for name in MASKS | {"flags", "results_paired"}:
        assert flags in found[name].remedy, name
    right = {"model", "version", "generation_prompt", "history", "special_tokens", "end_token", "thinking", "call_ids"}
    assert with_verdict(found, "ok") >= right | {"auto_tool_choice"}
    assert with_verdict(found, "warning") == set()
