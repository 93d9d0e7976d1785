"""Writes what was seen as a page of Markdown."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from benchmarks.report import Cell, table
from scripts.agents.catalogue import Agent
from scripts.agents.run import Outcome
from scripts.agents.scenarios import SCENARIOS

_HEAD = """# Agents

Which coding agents work with a server that runs this package, by endpoint. `scripts/agents.sh` installs the agents,
runs them without a terminal and writes this page. The script dictates the turns of a tiny model token by token, under
the masks. *Good* means that the server accepts every request. The agent also goes through all turns, shows the last
answer and exits with code 0 (except in *cancelled*, see below). A dash below a scenario means that it was not run. An
agent with 0 tools gets no calls.

* *tool turns*: reasoning, text and calls; one call fails on purpose.
* *cancelled*: the agent is interrupted during a long answer. *Good* means that it aborts the answer, and that the
  server is idle within 30 seconds.
* *sampled*: the calls are not dictated; the model samples them under the masks.
* *60 more tools*: an MCP server adds 60 tools.
* *tool search*: the agent does not send these 60 tools until the model searches for one.
* *answer schema*: a call, then an answer that obeys a JSON Schema.
* *known model*: the model has a name that makes Claude Code send `thinking.budget_tokens`, and Codex a `custom` tool
  with a grammar.
"""


_REFUSED = """
## Requests that were refused

The column *by* has *this package* if vLLM accepts the same request with the constraint switched off.
"""


def page(outcomes: Sequence[Outcome], missing: dict[str, str]) -> str:
    """Write the page; ``missing`` says of an agent why it could not be installed."""
    by_agent = {agent: list(group) for agent, group in groupby(outcomes, key=lambda outcome: outcome.agent)}
    parts = [_HEAD, "## Outcome\n", _outcomes(by_agent), _missing(missing)]
    parts += [_REFUSED, _refused(outcomes), "\n## Other problems\n", _others(outcomes)]
    return "\n".join(part for part in parts if part).rstrip() + "\n"


def _outcomes(by_agent: dict[Agent, list[Outcome]]) -> str:
    titles = [scenario.title for scenario in SCENARIOS]
    rows: list[list[Cell]] = []
    for agent, outcomes in by_agent.items():
        found = {outcome.scenario.name: _verdict(outcome) for outcome in outcomes}
        seen = [exchange for outcome in outcomes for exchange in outcome.generations]
        tools = max((exchange.tools for exchange in seen), default=0)
        prompt = max((exchange.prompt_tokens for exchange in seen), default=0)
        cells: list[Cell] = [agent.name, agent.version, f"`{agent.endpoint}`", tools, f"{prompt:,}" if prompt else "-"]
        rows.append([*cells, *(found.get(scenario.name, "-") for scenario in SCENARIOS)])
    return table(["agent", "version", "endpoint", "tools", "longest prompt", *titles], rows, "---") + "\n"


def _verdict(outcome: Outcome) -> str:
    if not outcome.problems:
        return "good"
    return "refused" if any(exchange.status >= 400 for exchange in outcome.generations) else "see below"


def _missing(missing: dict[str, str]) -> str:
    return "".join(f"* **{name}** was not run: {reason}\n" for name, reason in missing.items())


def _refused(outcomes: Sequence[Outcome]) -> str:
    found: dict[tuple[str, int, str, str], Counter[str]] = {}  # in how many requests of each scenario
    for outcome in outcomes:
        for e in outcome.generations:
            if e.status >= 400:
                found.setdefault((outcome.agent.name, e.status, e.refused_by, e.reason), Counter())[
                    outcome.scenario.title
                ] += 1
    rows = [
        (name, ", ".join(times), status, times.total(), refused_by, reason)
        for (name, status, refused_by, reason), times in found.items()
    ]
    columns = ("agent", "scenarios", "status", "times", "by", "reason")
    return table(columns, rows, "---") + "\n" if found else "None.\n"


def _others(outcomes: Sequence[Outcome]) -> str:
    lines = []
    for outcome in outcomes:
        problems = [problem for problem in outcome.problems if " answered " not in problem]
        refused = any(exchange.status >= 400 for exchange in outcome.generations)
        if problems and not refused:
            lines.append(f"* {outcome.agent.name}, {outcome.scenario.title}: {'; '.join(problems)}")
    return "\n".join(lines) + "\n" if lines else "None.\n"
