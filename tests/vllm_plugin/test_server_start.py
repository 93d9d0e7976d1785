"""Flags and models that cannot work end a real server at its start, with the remedy in its log."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2.evaluation.server import BACKEND_FLAGS, CONSTRAINED_FLAGS
from constrained_k2.testing import build_model
from tests.warm import WarmServer

pytestmark = pytest.mark.server

NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3})


def settings(**ours: object) -> tuple[str, str]:
    return "--additional-config", json.dumps({"constrained_k2": ours})


def log_of_a_server_that_does_not_start(model: Path, log: Path, *flags: str) -> str:
    with pytest.raises(RuntimeError, match="the server ended with [1-9]"), WarmServer(model, flags, log=log):
        pass
    return log.read_text(errors="replace")


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        ((*CONSTRAINED_FLAGS, "--speculative-config", NGRAM), "Leave out --logits-processors"),
        ((*CONSTRAINED_FLAGS, *settings(route="structured_output")), "Leave out --logits-processors"),
        ((*BACKEND_FLAGS, *settings(route="logits_processor")), "Add --logits-processors"),
        ((*BACKEND_FLAGS, *settings(route="both")), "must be 'structured_output' or 'logits_processor'"),
        ((*BACKEND_FLAGS, *settings(finish_reserve=100_000)), "finish_reserve: must be a whole number from 0 to 4096"),
        ((*BACKEND_FLAGS, *settings(finish_resrve=1)), "additional_config.constrained_k2: .*Use strict, "),
    ],
    ids=["processor, ngram", "backend, processor", "processor, none", "no route", "no reserve", "a misspelling"],
)
def test_contradictory_flags(model: Path, tmp_path: Path, flags: tuple[str, ...], remedy: str) -> None:
    assert re.search(remedy, log_of_a_server_that_does_not_start(model, tmp_path / "log", *flags))


@pytest.mark.parametrize("flags", [BACKEND_FLAGS, CONSTRAINED_FLAGS], ids=["backend", "processor"])
def test_a_model_whose_tokenizer_is_not_kimis(tmp_path: Path, flags: tuple[str, ...]) -> None:
    model = build_model(tmp_path / "model", arch="llama")
    file = model / "tokenizer_config.json"
    written = file.read_text()
    assert "<|tool_call_argument_begin|>" in written
    file.write_text(written.replace("<|tool_call_argument_begin|>", "<|something_else|>"))
    log = log_of_a_server_that_does_not_start(model, tmp_path / "log", *flags)
    assert "FormatMismatch" in log
    assert "tool_call_argument_begin" in log
