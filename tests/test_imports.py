"""Importing the package loads nothing heavy, and every public name can be had."""

import subprocess
import sys

import pytest

import constrained_k2


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = {"torch", "vllm", "llguidance", "xgrammar", "numpy", "tiktoken", "transformers", "jsonschema"}
    assert not loaded_by("import constrained_k2") & heavy


def test_values_parsing_and_rendering_need_no_engine() -> None:
    names = "Vocabulary, ToolCallSpec, ToolCallParser, parse_completion, render_tool_calls, repair_messages, KIMI_K2"
    assert not loaded_by(f"from constrained_k2 import {names}") & {"torch", "vllm", "llguidance", "xgrammar"}


def test_every_public_name_can_be_had() -> None:
    for name in constrained_k2.__all__:
        assert getattr(constrained_k2, name) is not None
    assert set(dir(constrained_k2)) >= set(constrained_k2.__all__)
    with pytest.raises(AttributeError, match="nope"):
        constrained_k2.nope  # noqa: B018
