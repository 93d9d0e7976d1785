"""Runs one agent through one scenario, in a home and a project of its own."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from constrained_k2 import Vocabulary
from scripts.agents.catalogue import ANSWER, MODEL, Agent, Job, Launch, Scenario
from scripts.agents.observation import GENERATING, Exchange
from scripts.agents.proxy import RecordingProxy
from scripts.agents.scenarios import NOTES
from scripts.agents.scripted import Dictation

_KEPT_VARIABLES = ("PATH", "LANG", "TERM", "SSL_CERT_FILE")
_LIMIT = 300  # seconds for one run
_SEEN = 20  # events of a stream before a run is cut
_IDLE_WITHIN = 30  # seconds in which the server must drop a cancelled request
_PROMPT = "Look around in this folder, then say what you found."


@dataclass
class Outcome:
    """The result of a run."""

    agent: Agent
    scenario: Scenario
    exit_code: int | None  # None: it did not end by itself
    seconds: float
    exchanges: list[Exchange] = field(repr=False)
    problems: list[str]  # none: every request was accepted, and the agent took every answer

    @property
    def generations(self) -> list[Exchange]:
        """The requests for an answer of the model."""
        return [exchange for exchange in self.exchanges if exchange.path in GENERATING]


def run(  # noqa: PLR0913 - what every run needs
    agent: Agent,
    scenario: Scenario,
    *,
    folder: Path,
    proxy: RecordingProxy,
    server_url: str,
    vocabulary: Vocabulary,
    log: Path,
) -> Outcome:
    """Run an agent through a scenario; what it printed goes to ``log``."""
    place = Path(tempfile.mkdtemp(prefix="agent-"))
    home, project = place / "home", place / "project"
    for made in (home, project, place / "tmp"):
        made.mkdir()
    (project / NOTES).write_text("one\ntwo\n")
    schema_file = None
    if scenario.answer_schema is not None:
        schema_file = place / "schema.json"
        schema_file.write_text(json.dumps(scenario.answer_schema))
    job = Job(
        folder=folder,
        home=home,
        project=project,
        url=proxy.url,
        prompt=_PROMPT,
        scenario=scenario,
        answer_schema=schema_file,
        model=agent.known_model if scenario.known_model else MODEL,
    )
    launch = agent.launch(agent, job)
    for path, text in launch.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    last = agent.last if scenario.answer_schema is None or agent.answer is None else agent.answer
    dictation = Dictation(vocabulary, scenario.turns(agent, project), last, without_tools=not agent.tools)
    exchanges = proxy.start_run(dictation)
    start = time.monotonic()
    try:
        exit_code = _run_process(launch, job, place / "tmp", log, exchanges if scenario.cut else None)
        seconds = time.monotonic() - start
        outcome = Outcome(agent, scenario, exit_code, seconds, exchanges, [])
        outcome.problems = list(_problems(outcome, dictation, log.read_text("utf-8", "replace"), server_url))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return outcome


def _run_process(launch: Launch, job: Job, temporary: Path, log: Path, cut: Sequence[Exchange] | None) -> int | None:
    """Start an agent, wait for its end, and return its exit code; with ``cut``, interrupt it while it is answered."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    own = {"HOME": str(job.home), "XDG_CONFIG_HOME": str(job.home / ".config"), "TMPDIR": str(temporary)}
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - commands of catalogue.py
            launch.command,
            cwd=job.project,
            env=kept | own | launch.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that its children end with it
        )
        deadline = time.monotonic() + _LIMIT
        try:
            while process.poll() is None and time.monotonic() < deadline:
                if cut is not None and any(_is_under_way(exchange) for exchange in cut):
                    return _interrupt(process)
                time.sleep(0.1)
            return process.poll()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _is_under_way(exchange: Exchange) -> bool:
    """True in the middle of an answer: some events of a stream, or seconds after a request that is not streamed."""
    if exchange.path not in GENERATING or exchange.ended != "open":
        return False
    return exchange.events >= _SEEN or (not exchange.is_streamed and time.monotonic() - exchange.started > 3)


def _interrupt(process: subprocess.Popen[bytes]) -> int | None:
    for number, seconds in ((signal.SIGINT, 3), (signal.SIGINT, 4), (signal.SIGTERM, 5)):  # some ask back at the first
        os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            return process.wait(seconds)
    return None


def _problems(outcome: Outcome, dictation: Dictation, printed: str, server_url: str) -> Sequence[str]:
    found = [f"{e.path} answered {e.status}: {e.reason}" for e in outcome.generations if e.status >= 400]
    found += [f"{e.path} broke: {e.reason}" for e in outcome.generations if e.status == 200 and e.reason]
    if outcome.scenario.cut:
        if not any(exchange.ended == "cut" for exchange in outcome.generations):
            found.append("the interrupt aborted no running generation, so cancellation is unproven")
        if (running := _running(server_url)) > 0:
            found.append(f"{running:.0f} requests ran on after {_IDLE_WITHIN} s")
        return found
    if outcome.exit_code is None:
        found.append(f"did not end within {_LIMIT} s")
    elif outcome.exit_code != 0:
        found.append(f"exit code {outcome.exit_code}")
    if not dictation.is_done:
        found.append(f"took {dictation.taken} of the turns")
    found += [f"declared no tool {name}" for name in sorted(dictation.undeclared)]
    bodies = [exchange.digest for exchange in outcome.generations]
    if repeated := len(bodies) - len(set(bodies)):
        found.append(f"sent {repeated} requests again")
    shown = outcome.agent.last.text if outcome.scenario.answer_schema is None else ANSWER["found"]
    if shown not in printed:
        found.append("did not show the last answer")
    return found


def _running(server_url: str) -> float:
    """Wait until the server runs no request; return how many still run in the end."""
    deadline = time.monotonic() + _IDLE_WITHIN
    while True:
        metrics = httpx.get(f"{server_url}/metrics", timeout=30).text
        count = sum(
            map(float, re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", metrics, re.MULTILINE))
        )
        if count == 0 or time.monotonic() > deadline:
            return count
        time.sleep(0.5)
