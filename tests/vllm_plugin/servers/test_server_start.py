"""A server that cannot work ends at its start, with the error in its log; wrong flags are in test_route.py.

vLLM's Rust front end loads no Python, so our tool parser behind it ends the start with the flags to use.
"""

import json
import re
import shlex
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs

from constrained_k2 import InvalidRequest
from constrained_k2.evaluation.server import ADOPTED_FLAGS, BACKEND_FLAGS, STRICT_FLAGS, rust_front_end
from constrained_k2.testing import build_model
from constrained_k2.vllm_plugin.shared.flags import TOOL_PARSER_NAME
from tests.kit.data import rust_front_end_binary
from tests.kit.warm import WarmServer
from tests.vllm_plugin.patched import patch_vllm

OURS = "constrained_k2.vllm_plugin:KimiK2LogitsProcessor"


def log_of_a_start(model: Path, log: Path, environment: Mapping[str, str] | None = None) -> str:
    """The log of a server with our tool parser, which ends at its start."""
    with (
        pytest.raises(RuntimeError, match="the server ended with [1-9]"),
        WarmServer(model, BACKEND_FLAGS, log=log, environment=environment),
    ):
        pass
    return log.read_text(errors="replace")


@pytest.mark.server
def test_a_model_whose_tokenizer_is_not_kimis(tmp_path: Path) -> None:
    model = build_model(tmp_path / "model", arch="llama")
    file = model / "tokenizer_config.json"
    written = file.read_text()
    assert "<|tool_call_argument_begin|>" in written
    file.write_text(written.replace("<|tool_call_argument_begin|>", "<|something_else|>"))
    log = log_of_a_start(model, tmp_path / "log")
    assert "FormatMismatch" in log and "tool_call_argument_begin" in log


@pytest.mark.server
@pytest.mark.only_all  # the refusal itself is tested below
def test_our_tool_parser_ends_the_start_of_the_rust_front_end(tmp_path: Path, model: Path) -> None:
    log = log_of_a_start(model, tmp_path / "log", rust_front_end(rust_front_end_binary()))
    assert "--tool-call-parser kimi_k2 --tool-strict-level parameter --additional-config" in log
    assert "is not registered" not in log


def arguments(**given: object) -> Namespace:
    """The arguments of ``vllm serve`` with our tool parser."""
    parsed = {"model": "nowhere", "subparser": "serve", "tool_call_parser": TOOL_PARSER_NAME, "additional_config": {}}
    return Namespace(**parsed | given)


@pytest.fixture
def rust(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_vllm()
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")


@pytest.mark.usefixtures("rust")
def test_the_start_ends_with_the_flags_to_use() -> None:
    with pytest.raises(InvalidRequest, match=r"^--tool-call-parser: vLLM's Rust front end .*cannot load") as caught:
        AsyncEngineArgs.from_cli_args(arguments())
    found = re.search(r"Use (--tool-call-parser .*?\}\}')", str(caught.value))
    assert found is not None
    assert shlex.split(found[1]) == [*STRICT_FLAGS[1:], *ADOPTED_FLAGS[len(STRICT_FLAGS) :]]
    assert json.loads(shlex.split(found[1])[-1]) == {"constrained_k2": {"route": "structured_output"}}


@pytest.mark.usefixtures("rust")
def test_no_route_is_named_beside_our_logits_processor() -> None:
    with pytest.raises(InvalidRequest, match="--tool-strict-level parameter: the engine core") as caught:
        AsyncEngineArgs.from_cli_args(arguments(logits_processors=[OURS]))
    assert "additional-config" not in str(caught.value)


@pytest.mark.usefixtures("rust")
@pytest.mark.parametrize("given", [{"subparser": None}, {"subparser": "serve", "tool_call_parser": "kimi_k2"}], ids=str)
def test_what_starts_no_rust_front_end_or_not_our_parser_goes_on(given: dict[str, object]) -> None:
    AsyncEngineArgs.from_cli_args(arguments(**given))


@pytest.mark.usefixtures("rust")
def test_vllms_python_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "0")
    AsyncEngineArgs.from_cli_args(arguments())
