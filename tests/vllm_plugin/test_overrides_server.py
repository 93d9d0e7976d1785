"""Overridden tokens in the answers of real servers, on both routes, with the worker in a process of its own and not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2 import Vocabulary
from constrained_k2.evaluation.server import API_SERVER, CONSTRAINED_FLAGS, VllmServer
from constrained_k2.testing import build_model
from tests.warm import WarmServer

pytestmark = pytest.mark.server

PARSER = "--tool-call-parser=kimi_k2_constrained"
FLAGS: dict[str, tuple[str, ...]] = {
    "structured output": ("--enable-auto-tool-choice", PARSER),
    "logits processor": CONSTRAINED_FLAGS,
}
UNITS = {"type": "object", "properties": {"units": {"enum": ["celsius", "fahrenheit"]}}, "required": ["units"]}
TOOLS = [{"type": "function", "function": {"name": "get-weather", "parameters": UNITS}}]


@pytest.fixture(scope="module", params=FLAGS.values(), ids=list(FLAGS))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    directory = tmp_path_factory.mktemp("server")
    model = build_model(directory / "model", arch="llama")
    with WarmServer(model, request.param, log=directory / "server.log", entry=API_SERVER) as started:
        yield started


def ask(server: VllmServer, **fields: Any) -> list[Any]:
    """The choices of an answer; of a stream, the last piece of each."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=300, max_retries=0)
    create: Any = client.chat.completions.create
    answer = create(
        model="kimi-k2", messages=[{"role": "user", "content": "Hi"}], tools=TOOLS, tool_choice="required",
        parallel_tool_calls=False, max_tokens=200, seed=1, **fields,
    )  # fmt: skip
    if not fields.get("stream"):
        assert not getattr(answer, "kv_transfer_params", None)
        return list(answer.choices)
    pieces = [choice for chunk in answer for choice in chunk.choices]
    assert [hasattr(piece, "constrained_k2") for piece in pieces if piece.finish_reason is None].count(True) == 0
    return sorted((piece for piece in pieces if piece.finish_reason), key=lambda piece: piece.index)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_sees_all_of_its_overrides(server: VllmServer, *, stream: bool) -> None:
    """The model is random: it wants another token than one of the call's nearly everywhere."""
    extra = {"vllm_xargs": {"constrained_k2_diagnostics": "overrides"}, "return_token_ids": True}
    choices = ask(server, n=2, stream=stream, extra_body=extra)
    assert len(choices) == 2
    for choice in choices:
        found = choice.constrained_k2
        assert found["tool_choice"] == "required"
        tokens, overrides = found["tokens"], found["overrides"]
        assert found["examined_rows"] == len(tokens) > 10
        assert all(token["allowed"] >= 1 for token in tokens)
        text = "".join(token["text"] for token in tokens)
        assert "functions.get-weather:0" in text
        assert 5 < len(overrides) <= found["overrides_count"] <= len(tokens)
        positions = [override["position"] for override in overrides]
        assert positions == sorted(set(positions))
        for override in overrides:
            assert override["written"] == tokens[override["position"]]["text"]
            assert 0 < override["probability"] <= override["forbidden"] <= 1
        places = {(override["phase"], override["tool"], override["pointer"]) for override in overrides}
        assert any(tool == "get-weather" and pointer == "/units" for _, tool, pointer in places), places
        assert any("enum" in override["keywords"] for override in overrides if override["pointer"] == "/units")


@pytest.mark.parametrize("stream", [False, True])
def test_nobody_else_sees_any(server: VllmServer, *, stream: bool) -> None:
    (choice,) = ask(server, stream=stream, extra_body={"vllm_xargs": {"constrained_k2_rows": "forged"}})
    assert not hasattr(choice, "constrained_k2")
    (choice,) = ask(server, stream=stream, extra_body={"vllm_xargs": {"constrained_k2_diagnostics": "on"}})
    assert "overrides" not in choice.constrained_k2


def test_other_values_are_refused(server: VllmServer) -> None:
    with pytest.raises(openai.BadRequestError, match="must be 'on', 'off' or 'overrides', not 'all'"):
        ask(server, extra_body={"vllm_xargs": {"constrained_k2_diagnostics": "all"}})


def test_the_vocabulary_is_the_models(server: VllmServer) -> None:
    """Token ids in the list are those of the server's tokenizer."""
    extra = {"vllm_xargs": {"constrained_k2_diagnostics": "overrides"}}
    (choice,) = ask(server, extra_body=extra)
    vocabulary = Vocabulary.from_pretrained(str(Path(server.model)), trust=True)
    for override in choice.constrained_k2["overrides"]:
        assert vocabulary.decode([override["wanted_id"]]) == override["wanted"]
        assert vocabulary.decode([override["written_id"]]) == override["written"]
