"""Installs the agents from the registries of npm and PyPI, each into a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path

from scripts.agents.catalogue import Agent

_TIMEOUT = 900  # seconds for one agent


def install(agent: Agent, folder: Path) -> None:
    """Install an agent below ``folder`` unless these versions are there already.

    Raises:
        RuntimeError: Its registry does not have it, or the installation failed; the message has the end of the output.
    """
    agent_folder = folder / agent.program
    done = agent_folder / "installed"
    if done.is_file() and done.read_text() == repr(agent.packages):
        return
    print(f"installing {agent.name} {agent.version}", flush=True)
    agent_folder.mkdir(parents=True, exist_ok=True)
    if agent.from_npm:
        # Install scripts are run below, and only those of the agent itself: npm may ask a person to approve them.
        _run(["npm", "install", "--prefix", str(agent_folder), "--ignore-scripts", "--no-fund", *agent.packages])
        for script in ("install.cjs", "postinstall.mjs"):
            package = agent_folder / "node_modules" / agent.packages[0].rpartition("@")[0]
            if (package / script).is_file():
                _run(["node", script], package)
    else:
        _run([sys.executable, "-m", "venv", str(agent_folder)])
        _run([str(agent_folder / "bin" / "python"), "-m", "pip", "install", "-q", *agent.packages])
    done.write_text(repr(agent.packages))


def _run(command: list[str], folder: Path | None = None) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    process = subprocess.run(  # noqa: S603 - commands of this file
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_TIMEOUT, check=False
    )
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} … failed:\n{(process.stdout + process.stderr)[-1500:]}")
