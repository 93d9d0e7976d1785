"""Installs agents, starts a server, runs every scenario and writes docs/agents.md.

example: scripts/agents.sh --only codex opencode --out /tmp/agents.md
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from constrained_k2 import Vocabulary
from constrained_k2.evaluation.server import BACKEND_FLAGS, VllmServer, with_settings
from constrained_k2.testing import build_model
from scripts.agents.catalogue import AGENTS, MODEL, Agent
from scripts.agents.proxy import RecordingProxy
from scripts.agents.run import Outcome, run
from scripts.agents.scenarios import SCENARIOS
from scripts.agents.table import page

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / ".agents"  # where agents are installed
_INSTALLATION = 900  # seconds for one agent
_CONTEXT = 131_072  # tokens: agents' prompts take tens of thousands in the test model's small vocabulary
_FLAGS = (
    *with_settings(BACKEND_FLAGS, undeclared_calls="nearest"),  # a random model means none of its calls
    *("--reasoning-parser", "kimi_k2"),
    *("--logits-processors", "scripted:ScriptedLogitsProcessor"),
    *(f"--max-model-len={_CONTEXT}", f"--max-num-batched-tokens={_CONTEXT}", "--enable-prefix-caching"),
    *("--served-model-name", MODEL, *filter(None, (agent.known_model for agent in AGENTS))),
)


def main() -> int:
    """Run what was asked for; 1 if a run has a problem."""
    names = [agent.name for agent in AGENTS]
    parser = argparse.ArgumentParser(prog="scripts/agents.sh", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="AGENT", help=", ".join(names))
    parser.add_argument("--out", type=Path, default=_ROOT / "docs" / "agents.md", help="(default: docs/agents.md)")
    parser.add_argument("--logs", type=Path, help="keep what agents and server print here (it may repeat prompts)")
    options = parser.parse_args()

    # A shell has a script in the background ignore interrupts, and so would every agent that is to be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the agent and the server end too
    missing: dict[str, str] = {}
    installed = []
    for agent in (agent for agent in AGENTS if agent.name in options.only):
        try:
            _install(agent)
            installed.append(agent)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            missing[agent.name] = f"it could not be installed ({str(error).splitlines()[-1][:200]})"
            print(error, file=sys.stderr)
    outcomes: list[Outcome] = []
    for outcome in _run_all(installed, options):
        outcomes.append(outcome)
        options.out.write_text(page(outcomes, missing), "utf-8")  # after each run, for they take long
    print(f"written: {options.out}")
    return int(bool(missing) or any(outcome.problems for outcome in outcomes))


def _install(agent: Agent) -> None:
    """Install an agent from npm or PyPI into a folder of its own, unless these versions are there already.

    Raises:
        RuntimeError: Its registry does not have it, or the installation failed; the message has the end of the output.
    """
    agent_folder = _FOLDER / agent.program
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
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_INSTALLATION, check=False
    )
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} … failed:\n{(process.stdout + process.stderr)[-1500:]}")


def _run_all(agents: Sequence[Agent], options: argparse.Namespace) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory() as temporary:
        logs: Path = options.logs or Path(temporary)
        logs.mkdir(parents=True, exist_ok=True)
        model = build_model(Path(temporary) / "model", arch="llama")
        vocabulary = Vocabulary.from_pretrained(model)
        paths = [_ROOT, _ROOT / "tests" / "vllm_plugin"]
        with (
            VllmServer(model, _FLAGS, log=logs / "server.log", python_path=paths) as server,
            RecordingProxy(server.url) as proxy,
        ):
            for agent, scenario in product(agents, SCENARIOS):
                if scenario.fits(agent):
                    where = {"folder": _FOLDER, "log": logs / f"{agent.name}-{scenario.name}.log"}
                    outcome = run(agent, scenario, proxy=proxy, server_url=server.url, vocabulary=vocabulary, **where)
                    verdict = "; ".join(outcome.problems) or "good"
                    print(f"{agent.name} {scenario.name}: {outcome.seconds:.0f} s, {verdict}", flush=True)
                    yield outcome


if __name__ == "__main__":
    sys.exit(main())
