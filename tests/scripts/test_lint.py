"""The rules of scripts/lint find what they are for. (``scripts/test.sh`` runs them over the repository.)"""

import ast

import pytest

from scripts.lint import imports, words


@pytest.mark.parametrize("name", words.FIRST_LINES)
def test_each_pattern_finds_its_example(name: str) -> None:
    assert name in words.found(words.FIRST_LINES[name][1], words.FIRST_LINES)


@pytest.mark.parametrize("line", ["What is wrong?", "There is no longer a limit.", "It stands for one."])
def test_plain_sentences_pass(line: str) -> None:
    assert not words.found(line, words.FIRST_LINES)


@pytest.mark.parametrize(
    ("file", "code", "finding"),
    [
        ("schema/a.py", "def f():\n    from constrained_k2 import turn", "schema must not import turn"),
        ("grammar/a.py", "from constrained_k2.turn.matcher import x", "grammar must not import turn"),
        ("parsing/a.py", "import constrained_k2.prompts", "parsing must not import prompts"),
        ("turn/a.py", "import xgrammar.testing", "only engines imports xgrammar"),
        ("cli/a.py", "from vllm import LLM", "only vllm_plugin imports vllm"),
        (
            "vllm_plugin/worker/a.py",
            "from constrained_k2.vllm_plugin.api_server import x",
            "worker must not import api_server, another process's",
        ),
        (
            "vllm_plugin/engine_core/a.py",
            "from constrained_k2.vllm_plugin.worker.device_masks import x",
            "engine_core must not import worker, another process's",
        ),
        ("turn/a.py", 'x = "<|tool_call_end|>"', "spells a marker"),
    ],
)
def test_each_rule_of_a_file_finds_its_example(file: str, code: str, finding: str) -> None:
    (found,) = imports.of_file(imports.ROOT / file, ast.parse(code))
    assert finding in found


def test_allowed_imports_pass() -> None:
    code = '"""<|tool_call_end|>"""\nfrom constrained_k2.schema import a\nfrom constrained_k2.turn.b import c\nimport torch'
    assert not [*imports.of_file(imports.ROOT / "turn/a.py", ast.parse(code))]


def test_circles_are_found() -> None:
    graph = {"a.b": {"a.c"}, "a.c": {"a.d"}, "a.d": {"a.b"}, "a.e": {"a.b"}}
    assert imports.circles(graph) == [{"a.b", "a.c", "a.d"}]
