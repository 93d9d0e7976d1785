"""Imports go one way, and importing the package loads nothing heavy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import constrained_k2

ROOT = Path(constrained_k2.__file__).parent
# A module may import from its own layer only within its own folder, and from every layer above it in this list.
LAYERS = [
    {"errors", "counters"},
    {"format"},
    {"policy", "thinking"},
    {"tools", "tool_choice", "vocabulary", "tokenizer_files", "bitmask"},
    {"schema"},
    {"grammar"},
    {"phases", "header", "engines", "parsing", "rendering", "kernels"},
    {"matcher", "protocols"},
    {"batch"},
    {"cache"},
    {"compiler", "compiled"},
    {"coverage", "whole_format", "json_limiter", "drafting"},
    {"closing"},
    {"fixtures"},
    {"evaluation"},
    {"vllm_plugin"},
    {"cli"},
    {"__main__"},
]
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}
SAME_LAYER = {  # one reads what the other holds
    ("vocabulary", "tokenizer_files"),
    ("tokenizer_files", "vocabulary"),
    ("tools", "tool_choice"),
    ("tool_choice", "tools"),
    ("matcher", "protocols"),
    ("protocols", "matcher"),
    ("compiler", "compiled"),
    ("compiled", "compiler"),
}


def imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "constrained_k2"}
    return found


def part(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    here = part(path)
    for module in imports(path):
        if module.startswith("constrained_k2."):
            there = module.split(".")[1]
            if there in LAYER and there != here and (here, there) not in SAME_LAYER:
                assert LAYER[there] < LAYER[here], f"{here} imports {there}"
        top = module.split(".")[0]
        if top == "vllm":
            assert here == "vllm_plugin"
        if top in {"llguidance", "xgrammar"}:
            assert here == "engines"


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
