"""The doctor with real vLLM servers of a random Kimi K3 model: ours, and vLLM's own parser and structural tag."""

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2.evaluation.doctor.findings import Finding
from constrained_k2.evaluation.server import VllmServer
from tests.evaluation.test_doctor_server import examined
from tests.kit.servers import on

pytestmark = pytest.mark.server

MASKS = {"auto", "special_in_arguments"}  # of vLLM's structural tag


def with_verdict(found: dict[str, Finding], verdict: str) -> set[str]:
    return {name for name, finding in found.items() if finding.verdict == verdict}


@on("kimi_k3_structured_output")
def test_our_server(server: VllmServer) -> None:
    found = examined(server)
    assert {name: finding for name, finding in found.items() if finding.verdict != "ok"} == {}
    assert "Kimi K3" in found["model"].seen


@on(only_all=("kimi_k3_stock",))
def test_vllms_own_parser(server: VllmServer) -> None:
    found = examined(server)
    faults = with_verdict(found, "fault")
    assert faults >= MASKS | {"flags", "required", "arguments", "strict_refused", "results_paired"}
    flags = "--tool-call-parser kimi_constrained --reasoning-parser kimi_k3"
    for name in MASKS | {"flags", "results_paired"}:
        assert flags in found[name].remedy, name
    for name in ("model", "version", "generation_prompt", "history", "special_tokens"):
        assert found[name].verdict == "ok", name
    for name in ("end_token", "thinking", "call_ids", "auto_tool_choice"):
        assert found[name].verdict == "ok", name
    assert with_verdict(found, "warning") == set()
