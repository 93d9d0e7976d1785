"""Runs the scripts of ``scripts/`` with the client libraries' own Python, against one server."""

import ast
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from constrained_k2.evaluation.server import VllmServer
from tests.kit.budget import SEED

pytestmark = pytest.mark.server

_ROOT = Path(__file__).parents[2]
_SCRIPTS = Path(__file__).parent / "scripts"
_GROUPS = {"instructor_modes": "clients-litellm", "litellm_adapters": "clients-litellm"}
"""Modules whose libraries are in another dependency group than ``clients``."""
_SECONDS = 540  # for all scripts of a module
_PROCESSES = 3  # the server answers several at a time


def _names(module: Path) -> list[str]:
    """The scripts of a module, which cannot be imported here: its libraries are not installed."""
    found, shared, without = list[str](), list[str](), set[str]()
    for node in ast.parse(module.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            found.append(node.name)
        elif isinstance(node, ast.ImportFrom) and [each.name for each in node.names] == ["calls"]:
            shared = _names(_SCRIPTS / "calls.py")
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "WITHOUT":
            without = ast.literal_eval(node.value)
    assert without <= {*shared}
    return [name for name in shared if name not in without] + found


_NO_SCRIPTS = {"__init__", "__main__", "apis", "calls", "common"}
MODULES = {path.stem: _names(path) for path in sorted(_SCRIPTS.glob("*.py")) if path.stem not in _NO_SCRIPTS}


def _python(module: str) -> Path:
    """The interpreter with a module's libraries, if scripts/clients.sh has made it."""
    folder = Path(os.environ.get("CLIENTS_FOLDER", _ROOT / ".clients"))
    return folder / _GROUPS.get(module, "clients") / "bin" / "python"


def _server(module: str) -> str:
    """The fixture of a module's server."""
    return "thinking" if module == "thinking_models" else "served"


def _run(python: Path, module: str, scripts: list[str], url: str) -> dict[str, str | None]:
    """Run scripts of a module in one process; return the traceback of each, or None."""
    command = [str(python), "-W", "ignore", "-m", "tests.clients.scripts", module, url, *scripts]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    assert len(lines) == len(scripts), f"{module} ended early:\n{done.stdout[-1000:]}{done.stderr[-3000:]}"
    return {line["name"]: line["problem"] for line in lines}


@pytest.fixture(scope="package")
def problem(request: pytest.FixtureRequest) -> Iterator[Callable[[str, str], str | None]]:
    """A function of module and script that returns the script's traceback.

    The selected scripts of a module share a process, and all modules of a server start with the first one.
    """
    selected: dict[str, list[str]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and "script" in item.fixturenames:
            module, script = (str(item.callspec.params[name]) for name in ("module", "script"))
            selected.setdefault(module, []).append(script)
    running: dict[str, Future[dict[str, str | None]]] = {}

    with ThreadPoolExecutor(_PROCESSES) as pool:

        def result(module: str, script: str) -> str | None:
            if not _python(module).exists():
                pytest.skip(f"no {_python(module)}: run scripts/clients.sh")
            if module not in running:
                server: VllmServer = request.getfixturevalue(_server(module))
                for other, names in selected.items():
                    if _server(other) == _server(module) and _python(other).exists():
                        running[other] = pool.submit(_run, _python(other), other, names, server.url)
            return running[module].result()[script]

        yield result


def _scripts() -> Iterator[ParameterSet]:
    """All scripts; the default level has one of each module, which the commit chooses."""
    for module, names in MODULES.items():
        for number, name in enumerate(names):
            marks = () if number == SEED % len(names) else pytest.mark.only_all
            yield pytest.param(module, name, marks=marks)


@pytest.mark.parametrize(("module", "script"), [*_scripts()])
def test_script(problem: Callable[[str, str], str | None], module: str, script: str) -> None:
    found = problem(module, script)
    assert found is None, found
