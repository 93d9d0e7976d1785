"""Runs the scripts of ``scripts/`` with the client libraries' own Python, against one server."""

import ast
import json
import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from constrained_k2.evaluation.server import VllmServer

pytestmark = pytest.mark.server

_ROOT = Path(__file__).parents[2]
_SCRIPTS = Path(__file__).parent / "scripts"
_EXTRAS = {"instructor_modes": "clients-openai2", "litellm_adapters": "clients-openai2"}
"""Modules whose libraries stand in another extra than ``clients``."""
_SECONDS = 540  # for all scripts of a module


def _names(module: Path) -> list[str]:
    """The scripts of a module, which cannot be imported here: its libraries are not installed."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = (node.name for node in ast.parse(module.read_text("utf-8")).body if isinstance(node, functions))
    return [name for name in found if not name.startswith("_")]


_NO_SCRIPTS = {"__init__", "__main__", "common", "openai_client"}
MODULES = {path.stem: _names(path) for path in sorted(_SCRIPTS.glob("*.py")) if path.stem not in _NO_SCRIPTS}


def _python(module: str) -> Path:
    """The interpreter with a module's libraries."""
    extra = _EXTRAS.get(module, "clients")
    python = Path(os.environ.get("CLIENTS_FOLDER", _ROOT / ".clients")) / extra / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no {python}: run scripts/clients.sh")
    return python


@pytest.fixture(scope="session")
def problem(request: pytest.FixtureRequest) -> Callable[[str, str], str | None]:
    """A function of module and script that returns the script's traceback; a module's scripts share a process."""
    selected: dict[str, list[str]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and "script" in item.fixturenames:
            module, script = (str(item.callspec.params[name]) for name in ("module", "script"))
            selected.setdefault(module, []).append(script)

    @cache
    def ran(module: str) -> dict[str, str | None]:
        python = str(_python(module))
        server: VllmServer = request.getfixturevalue("thinking" if module == "thinking_models" else "served")
        command = [python, "-W", "ignore", "-m", "tests.clients.scripts", module, server.url]
        environment = {**os.environ, "PYTHONPATH": str(_ROOT), "NO_PROXY": "127.0.0.1"}
        done = subprocess.run(
            [*command, *selected[module]],
            cwd=_ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
        assert len(lines) == len(selected[module]), f"{module} ended early:\n{done.stdout[-1000:]}{done.stderr[-3000:]}"
        return {line["name"]: line["problem"] for line in lines}

    return lambda module, script: ran(module)[script]


@pytest.mark.parametrize(("module", "script"), [(module, name) for module, names in MODULES.items() for name in names])
def test_script(problem: Callable[[str, str], str | None], module: str, script: str) -> None:
    found = problem(module, script)
    assert found is None, found
