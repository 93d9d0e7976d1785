"""Imports go one way and in no circle, markers have one home, and importing the package loads nothing heavy."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import constrained_k2

ROOT = Path(constrained_k2.__file__).parent
# A module may import from its own layer only within its own folder, and from every layer above it in this list.
LAYERS = [
    {"errors"},
    {"formats"},
    {"vocabulary"},
    {"schema"},
    {"request"},
    {"grammar"},
    {"engines", "parsing", "prompts", "kernels"},
    {"turn"},
    {"compiler"},
    {"explain"},
    {"testing"},
    {"evaluation"},
    {"vllm_plugin"},
    {"cli"},
    {"__main__"},
]
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}


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
            if there in LAYER and there != here:
                assert LAYER[there] < LAYER[here], f"{here} imports {there}"
        top = module.split(".")[0]
        if top == "vllm":
            assert here == "vllm_plugin"
        if top in {"llguidance", "xgrammar"}:
            assert here == "engines"


MARKER = re.compile(r"<\\?\|[a-z_(]|</?think>|\[(?:BOS|EOS|EOT|PAD|UNK)\]")
PROSE = {"cli/grammar.py", "cli/parse.py"}  # help texts
# Copied beside a model, where they must stand alone.
SPELLED_ELSEWHERE = {"testing/tokenization_kimi.py", "testing/tokenization_kimi_k3.py"}


def test_markers_are_spelled_in_formats_alone() -> None:
    for path in FILES:
        if part(path) == "formats" or str(path.relative_to(ROOT)) in SPELLED_ELSEWHERE | PROSE:
            continue
        tree = ast.parse(path.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                assert not MARKER.search(node.value), (
                    f"{path}:{node.lineno} spells a marker: use constrained_k2.formats"
                )


def module_graph(*, typing: bool) -> dict[str, set[str]]:
    """Module -> the package's modules that it imports, anywhere in it; with ``typing`` also for annotations only."""
    paths = {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES
    }
    graph = {}
    for module, path in paths.items():
        tree = ast.parse(path.read_text())
        guarded = {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
            for statement in node.body
            for inner in ast.walk(statement)
        }
        found: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and (typing or node not in guarded):
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= (names & paths.keys()) | ({node.module} if names - paths.keys() else set())
        graph[module] = (found & paths.keys()) - {module}
    return graph


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The groups of more than one module that import each other, directly or not."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen, left = set[str](), [start]
        while left:
            for module in graph[left.pop()] - seen:
                seen.add(module)
                left.append(module)
        reach[start] = seen
    groups = {frozenset({*(b for b in reach[a] if a in reach[b]), a}) for a in graph if a in reach[a]}
    return [set(group) for group in groups]


@pytest.mark.parametrize("typing", [False, True], ids=["running", "typing too"])
def test_imports_in_circles(*, typing: bool) -> None:
    found = circles(module_graph(typing=typing))
    for group in found:
        assert len({module.rpartition(".")[0] for module in group}) == 1, f"a circle across folders: {sorted(group)}"
    assert len(found) <= (4 if typing else 2), sorted(map(sorted, found))


def test_the_top_holds_folders_alone_and_files_are_short() -> None:
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py", "errors.py"}
    long = {str(path): lines for path in FILES if (lines := len(path.read_text().splitlines())) > 500}
    assert not long


ENGINE = [path for path in FILES if path.parent.name in {"engine_core", "worker", "metrics"}]


def test_engine_code_imports_nothing_of_the_api_servers() -> None:
    """Save where it is called in the API server: inside the function that says so."""
    assert len(ENGINE) > 10
    for path in ENGINE:
        top = ast.parse(path.read_text()).body
        names = [node.module or "" for node in top if isinstance(node, ast.ImportFrom)]
        assert not [name for name in names if ".api_server" in name], path


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
