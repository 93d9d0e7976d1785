"""A server that cannot work ends at its start, with the error in its log; wrong flags are in test_route.py."""

from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2.evaluation.server import BACKEND_FLAGS, rust_front_end
from constrained_k2.testing import build_model
from tests.kit.data import rust_front_end_binary
from tests.kit.warm import WarmServer

pytestmark = pytest.mark.server


def log_of_a_start(model: Path, log: Path, environment: Mapping[str, str] | None = None) -> str:
    """The log of a server with our tool parser, which ends at its start."""
    with (
        pytest.raises(RuntimeError, match="the server ended with [1-9]"),
        WarmServer(model, BACKEND_FLAGS, log=log, environment=environment),
    ):
        pass
    return log.read_text(errors="replace")


def test_a_model_whose_tokenizer_is_not_kimis(tmp_path: Path) -> None:
    model = build_model(tmp_path / "model", arch="llama")
    file = model / "tokenizer_config.json"
    written = file.read_text()
    assert "<|tool_call_argument_begin|>" in written
    file.write_text(written.replace("<|tool_call_argument_begin|>", "<|something_else|>"))
    log = log_of_a_start(model, tmp_path / "log")
    assert "FormatMismatch" in log and "tool_call_argument_begin" in log


@pytest.mark.only_all  # test_rust_front_end.py has the refusal itself
def test_our_tool_parser_ends_the_start_of_the_rust_front_end(tmp_path: Path, model: Path) -> None:
    log = log_of_a_start(model, tmp_path / "log", rust_front_end(rust_front_end_binary()))
    assert "--tool-call-parser kimi_k2 --tool-strict-level parameter --additional-config" in log
    assert "is not registered" not in log
