"""Grammar drafts on real servers that schedule asynchronously: the same tokens as without drafts, in fewer steps."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

from benchmarks.drafts.run import ASYNC_SERVER
from constrained_k2.evaluation.server import BACKEND_FLAGS, VllmServer
from constrained_k2.evaluation.server_metrics import parse_counters, total
from constrained_k2.testing import build_model

pytestmark = [pytest.mark.server, pytest.mark.only_all]

LIMIT = 6
PROPERTIES = {
    "operation": {"enum": ["create_reservation", "cancel_reservation"]},
    "confirmed": {"type": "boolean"},
    "passenger_count": {"type": "integer", "minimum": 1, "maximum": 9},
    "reference": {"type": "string", "maxLength": 6},
    "departure": {"type": "object", "properties": {"airport": {"enum": ["BER", "HND"]}}, "required": ["airport"]},
}
PARAMETERS = {
    "type": "object", "properties": PROPERTIES, "required": [*PROPERTIES], "additionalProperties": False,
}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "change_booking", "parameters": PARAMETERS}}]
COMMON = {"model": "kimi-k2", "temperature": 0, "return_token_ids": True}
CALLS = [
    {"messages": [{"role": "user", "content": text}], "tools": TOOLS, "tool_choice": "required", "max_tokens": 90}
    | {"parallel_tool_calls": False}
    for text in ("Book a flight.", "Cancel 'AB12'.", "Three of us fly to HND.", "What now?")
]
TEXTS = [{"messages": [{"role": "user", "content": text}], "max_tokens": 16} for text in ("Hello!", "Who are you?")]
Answers = list[list[int]]


def ask(server: VllmServer, bodies: Sequence[Mapping[str, Any]]) -> tuple[Answers, dict[str, int]]:
    """The answers' token ids, and what vLLM counted meanwhile: tokens, draft tokens and accepted ones."""
    names = {
        "generated": "vllm:generation_tokens_total",
        "drafted": "vllm:spec_decode_num_draft_tokens_total",
        "accepted": "vllm:spec_decode_num_accepted_tokens_total",
    }

    def counted() -> dict[str, int]:
        counters = parse_counters(httpx.get(f"{server.url}/metrics", timeout=60).text, "vllm:")
        return {name: round(total(counters, metric)) for name, metric in names.items()}

    def one(body: Mapping[str, Any]) -> list[int]:
        answer = httpx.post(f"{server.url}/v1/chat/completions", json={**body, **COMMON}, timeout=300)
        assert answer.is_success, answer.text
        ids: list[int] = answer.json()["choices"][0]["token_ids"]
        return ids

    before = counted()
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(one, bodies))
    after = counted()
    return answers, {name: after[name] - before[name] for name in names}


def serve(model: Path, log: Path, speculation: Mapping[str, Any] | None, *, drafts: bool = True) -> VllmServer:
    flags = [*BACKEND_FLAGS, "--dtype=float32", "--max-num-seqs=4", "--async-scheduling"]
    flags += ["--additional-config", json.dumps({"constrained_k2": {"drafts": drafts}})]
    if speculation is not None:
        flags += ["--speculative-config", json.dumps(speculation)]
    return VllmServer(model, flags, log=log, entry=ASYNC_SERVER)


def assert_it_schedules_asynchronously(server: VllmServer) -> None:
    found = re.findall(r"AsyncScheduler: (\d+) of (\d+) steps were scheduled while another", server.log_text())
    overlapped, steps = map(int, found[-1])
    assert steps >= 16 and overlapped > steps * 0.7


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # On models with MLA vLLM's CPU build answers differently beside drafts, also beside its own.
    return build_model(tmp_path_factory.mktemp("model"), arch="llama")


@pytest.fixture(scope="module")
def plain(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Answers, Answers]]:
    """The answers without speculation: calls, and texts."""
    with serve(model, tmp_path_factory.mktemp("plain") / "server.log", None) as server:
        yield ask(server, CALLS)[0], ask(server, TEXTS)[0]
        assert_it_schedules_asynchronously(server)


def test_the_grammar_alone(model: Path, plain: tuple[Answers, Answers], tmp_path: Path) -> None:
    speculation = {
        "method": "ngram_gpu",
        "model": "constrained_k2.vllm_plugin.GrammarProposer",
        "num_speculative_tokens": LIMIT,
    }
    with serve(model, tmp_path / "server.log", speculation) as server:
        calls, counts = ask(server, CALLS)
        assert calls == plain[0]
        steps = (counts["generated"] - counts["accepted"]) / counts["generated"]
        print(f"the grammar alone: {steps:.3f} steps a token")
        assert steps <= 0.55
        texts, counts = ask(server, TEXTS)
        assert texts == plain[1]
        assert counts["drafted"] == 0, "a step of text verifies nothing"
        beside, _ = ask(server, [CALLS[0], *TEXTS])
        assert beside == [plain[0][0], *plain[1]]
        assert_it_schedules_asynchronously(server)


def test_beside_a_draft_model(model: Path, plain: tuple[Answers, Answers], tmp_path: Path) -> None:
    other = build_model(tmp_path / "other", arch="llama", seed=1)
    speculation = {"method": "draft_model", "model": str(other), "num_speculative_tokens": LIMIT}
    steps = {}
    for drafts in (False, True):
        with serve(model, tmp_path / f"{drafts}.log", speculation, drafts=drafts) as server:
            for _ in range(2):  # the first calls tell whose drafts are better
                calls, counts = ask(server, CALLS)
                assert calls == plain[0]
            steps[drafts] = (counts["generated"] - counts["accepted"]) / counts["generated"]
            assert ask(server, TEXTS)[0] == plain[1]
            assert_it_schedules_asynchronously(server)
    print(f"a draft model: {steps[False]:.3f} steps a token, with the grammar {steps[True]:.3f}")
    assert steps[True] <= min(0.55, steps[False])
