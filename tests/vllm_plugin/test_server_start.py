"""A model of another format ends a real server at its start, with the error in its log; wrong flags are in test_route.py."""

from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2.evaluation.server import BACKEND_FLAGS
from constrained_k2.testing import build_model
from tests.warm import WarmServer

pytestmark = pytest.mark.server


def test_a_model_whose_tokenizer_is_not_kimis(tmp_path: Path) -> None:
    model, log = build_model(tmp_path / "model", arch="llama"), tmp_path / "log"
    file = model / "tokenizer_config.json"
    written = file.read_text()
    assert "<|tool_call_argument_begin|>" in written
    file.write_text(written.replace("<|tool_call_argument_begin|>", "<|something_else|>"))
    with (
        pytest.raises(RuntimeError, match="the server ended with [1-9]"),
        WarmServer(model, BACKEND_FLAGS, log=log),
    ):
        pass
    said = log.read_text(errors="replace")
    assert "FormatMismatch" in said and "tool_call_argument_begin" in said
