"""The rules of docs/contributing/architecture.md: imports go one way and in no wide circle, markers have one home."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2] / "constrained_k2"
# A module may import from its own layer only within its own folder, and from every layer above it in this list.
LAYERS = [
    {"errors", "threads"},
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
_LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}
# Who may import the engines of others.
_HOMES = {"vllm": "vllm_plugin", "llguidance": "engines", "xgrammar": "engines"}
# Folders of vllm_plugin -> those that it must not import.
_PROCESSES = {"api_server", "engine_core", "worker"}
_APART = {
    "engine_core": _PROCESSES - {"engine_core"},
    "worker": _PROCESSES - {"worker"},
    "start": _PROCESSES,
    "shared": _PROCESSES | {"start"},
}
_MARKER = re.compile(r"<\\?\|[a-z_(]|</?think>|\[(?:BOS|EOS|EOT|PAD|UNK)\]")
# Help texts, and what is copied beside a model, where it must stand alone.
_SPELLED_ELSEWHERE = {
    "cli/grammar.py",
    "cli/parse.py",
    "testing/tokenization_kimi.py",
    "testing/tokenization_kimi_k3.py",
}
_LONGEST_FILE = 500
_CIRCLES = 2  # inside one folder
_CIRCLES_OF_TYPES = 4

Graph = dict[str, set[str]]


def findings() -> Iterator[str]:
    """Check every module of the package."""
    files = {path: ast.parse(path.read_text("utf-8")) for path in sorted(ROOT.rglob("*.py"))}
    del files[ROOT / "__init__.py"]  # its names are loaded on first use
    for path, tree in files.items():
        yield from of_file(path, tree)
        if (lines := len(path.read_text("utf-8").splitlines())) > _LONGEST_FILE:
            yield f"{path.relative_to(ROOT.parent)}: {lines} lines, {_LONGEST_FILE} at most"
    yield from _wide_circles(files)
    unexpected = {path.name for path in ROOT.glob("*.py")} - {"__init__.py", "__main__.py", "errors.py"}
    yield from (f"constrained_k2/{name}: the top has folders only" for name in sorted(unexpected))


def of_file(path: Path, tree: ast.Module) -> Iterator[str]:
    """Check the imports and strings of one module of the package."""
    for text in (*_imports_the_wrong_way(path, tree), *_markers(path, tree)):
        yield f"{path.relative_to(ROOT.parent)}{text}"


def _part(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def _imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every module that a file imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "constrained_k2":
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module


def _imports_the_wrong_way(path: Path, tree: ast.Module) -> Iterator[str]:
    here = _part(path)
    for line, module in _imported(tree):
        top, _, rest = module.partition(".")
        there = rest.partition(".")[0]
        if top == "constrained_k2" and there != here and there in _LAYER and _LAYER[there] >= _LAYER[here]:
            yield f":{line}: {here} must not import {there}"
        if _HOMES.get(top, here) != here:
            yield f":{line}: only {_HOMES[top]} imports {top}"
    if here == "vllm_plugin":
        for node in tree.body:
            # A module that is loaded in several processes imports what is for one inside the function that says so.
            names = node.module.split(".") if isinstance(node, ast.ImportFrom) and node.module else []
            if len(names) > 2 and names[2] in _APART.get(path.parent.name, ()):
                yield f":{node.lineno}: {path.parent.name} must not import {names[2]}, another process's"


def _markers(path: Path, tree: ast.Module) -> Iterator[str]:
    if _part(path) == "formats" or str(path.relative_to(ROOT)) in _SPELLED_ELSEWHERE:
        return
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docstrings:
            continue
        if _MARKER.search(node.value):
            yield f":{node.lineno}: spells a marker: use constrained_k2.formats"


def _wide_circles(files: dict[Path, ast.Module]) -> Iterator[str]:
    for most, is_typing in ((_CIRCLES, False), (_CIRCLES_OF_TYPES, True)):
        found = circles(_graph(files, typing=is_typing))
        for group in found:
            if len({module.rpartition(".")[0] for module in group}) > 1:
                yield f"a circle of imports across folders: {sorted(group)}"
        if len(found) > most:
            yield f"{len(found)} circles of imports, {most} at most: {sorted(map(sorted, found))}"


def _graph(files: dict[Path, ast.Module], *, typing: bool) -> Graph:
    """Module -> the package's modules that it imports, anywhere in it; with ``typing`` also for annotations only."""
    modules = {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): tree
        for path, tree in files.items()
    }
    graph = {}
    for module, tree in modules.items():
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
                found |= (names & modules.keys()) | ({node.module} if names - modules.keys() else set())
        graph[module] = (found & modules.keys()) - {module}
    return graph


def circles(graph: Graph) -> list[set[str]]:
    """The groups of more than one module that import each other, directly or not."""
    reach: Graph = {}
    for start in graph:
        seen, left = set[str](), [start]
        while left:
            for module in graph[left.pop()] - seen:
                seen.add(module)
                left.append(module)
        reach[start] = seen
    groups = {frozenset({*(b for b in reach[a] if a in reach[b]), a}) for a in graph if a in reach[a]}
    return [set(group) for group in groups]
