"""Our tool parser behind vLLM's Rust front end, which loads no Python: the start ends with the flags to use."""

import json
import re
import shlex
from argparse import Namespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm.engine.arg_utils import AsyncEngineArgs

from constrained_k2 import InvalidRequest
from constrained_k2.evaluation.server import ADOPTED_FLAGS, STRICT_FLAGS
from constrained_k2.vllm_plugin.shared.flags import TOOL_PARSER_NAME
from tests.vllm_plugin.patched import patch_vllm

OURS = "constrained_k2.vllm_plugin:KimiK2LogitsProcessor"


def arguments(**given: object) -> Namespace:
    """The arguments of ``vllm serve`` with our tool parser."""
    parsed = {"model": "nowhere", "subparser": "serve", "tool_call_parser": TOOL_PARSER_NAME, "additional_config": {}}
    return Namespace(**parsed | given)


@pytest.fixture(autouse=True)
def rust(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_vllm()
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")


def test_the_start_ends_with_the_flags_to_use() -> None:
    with pytest.raises(InvalidRequest, match=r"^--tool-call-parser: vLLM's Rust front end .*cannot load") as caught:
        AsyncEngineArgs.from_cli_args(arguments())
    found = re.search(r"Use (--tool-call-parser .*?\}\}')", str(caught.value))
    assert found is not None
    assert shlex.split(found[1]) == [*STRICT_FLAGS[1:], *ADOPTED_FLAGS[len(STRICT_FLAGS) :]]
    assert json.loads(shlex.split(found[1])[-1]) == {"constrained_k2": {"route": "structured_output"}}


def test_no_route_is_named_beside_our_logits_processor() -> None:
    with pytest.raises(InvalidRequest, match="--tool-strict-level parameter: the engine core") as caught:
        AsyncEngineArgs.from_cli_args(arguments(logits_processors=[OURS]))
    assert "additional-config" not in str(caught.value)


@pytest.mark.parametrize("given", [{"subparser": None}, {"subparser": "serve", "tool_call_parser": "kimi_k2"}], ids=str)
def test_what_starts_no_rust_front_end_or_not_our_parser_goes_on(given: dict[str, object]) -> None:
    AsyncEngineArgs.from_cli_args(arguments(**given))


def test_vllms_python_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "0")
    AsyncEngineArgs.from_cli_args(arguments())
