"""Writes what was seen as a page of Markdown."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from scripts.agents.catalogue import Agent
from scripts.agents.observation import Exchange
from scripts.agents.run import Outcome
from scripts.agents.scenarios import SCENARIOS

_HEAD = """# Agents

Which coding agents work with a server of this package, by endpoint. `scripts/agents.sh` installs them, runs them
without a terminal and writes this page. The script dictates a tiny model's turns token by token under the masks; in
the column *sampled* the model chooses its calls itself. *Good* means: the server accepts every request, the client
reads every answer to its end, each call comes back with its result, and a cancelled request leaves the server idle.
An agent with 0 tools sends no tools, so its turns are text.

* *tool turns*: reasoning, text and calls; one call fails. *cancelled*: the agent is interrupted while a long answer
  streams.
* *60 more tools*: an MCP server adds 60 tools. *tool search*: the agent holds these 60 back until the model asks for
  one.
* *answer schema*: a call, then an answer that fits a JSON Schema.
* *known model*: the model has a name for which Claude Code sends `thinking.budget_tokens`, and Codex a `custom` tool
  with a grammar.
"""


_REFUSED = """
## Requests that were refused

The column *by* names this package if the request is accepted with the constraint switched off.
"""


def page(outcomes: Sequence[Outcome], missing: dict[str, str]) -> str:
    """Write the page; ``missing`` says of an agent why it could not be installed."""
    by_agent = {agent: list(group) for agent, group in groupby(outcomes, key=lambda outcome: outcome.agent)}
    parts = [_HEAD, "## Outcome\n", _outcomes(by_agent), _missing(missing)]
    parts += [_REFUSED, _refused(outcomes), "\n## Other problems\n", _others(outcomes)]
    return "\n".join(part for part in parts if part).rstrip() + "\n"


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _outcomes(by_agent: dict[Agent, list[Outcome]]) -> str:
    titles = [scenario.title for scenario in SCENARIOS]
    head = ["agent", "version", "endpoint", "tools", "longest prompt", *titles]
    rows = [_row(head), _row(["---"] * len(head))]
    for agent, outcomes in by_agent.items():
        found = {outcome.scenario.name: _verdict(outcome) for outcome in outcomes}
        seen = [exchange for outcome in outcomes for exchange in outcome.generations]
        tools = max((exchange.tools for exchange in seen), default=0)
        prompt = max((exchange.prompt_tokens for exchange in seen), default=0)
        cells = [agent.name, agent.version, f"`{agent.endpoint}`", tools, f"{prompt:,}" if prompt else "-"]
        rows.append(_row([*cells, *(found.get(scenario.name, "-") for scenario in SCENARIOS)]))
    return "\n".join(rows) + "\n"


def _verdict(outcome: Outcome) -> str:
    if not outcome.problems:
        return "good"
    return "refused" if any(exchange.status >= 400 for exchange in outcome.generations) else "see below"


def _missing(missing: dict[str, str]) -> str:
    return "".join(f"* **{name}** was not run: {reason}\n" for name, reason in missing.items())


def sent(outcomes: Sequence[Outcome]) -> str:
    """Name what an agent sends, and what of it no other agent on its endpoint sends."""
    by_agent = {agent: list(group) for agent, group in groupby(outcomes, key=lambda outcome: outcome.agent)}
    exchanges = {agent: [e for o in outcomes for e in o.generations] for agent, outcomes in by_agent.items()}
    plain = {"model", "messages", "tools", "stream=true", "input", "max_tokens"}
    parts = []
    for agent, seen in exchanges.items():
        peers = [e for other, those in exchanges.items() for e in those if other is not agent]
        fields = _union(seen, "fields") - plain
        alike = _union([e for e in peers if e.path == agent.endpoint], "fields")
        keywords = _union(seen, "keywords") - _union(peers, "keywords")
        lines = [f"**{agent.name}**", ""]
        lines.append(f"* fields: {_code(_top(fields))}")
        if alike:
            lines.append(f"* fields and kinds of no other agent on this endpoint: {_code(fields - alike)}")
        else:
            lines.append(f"* kinds: {_code(name for name in fields if '=' in name)}")
        if keywords:
            lines.append(f"* schema keywords of no other agent: {_code(keywords)}")
        if headers := _union(seen, "headers"):
            lines.append(f"* `anthropic-beta`: {_code(headers)}")
        others = sorted(
            {f"{e.method} {e.path} ({e.status})" for o in by_agent[agent] for e in o.exchanges} - _paths(seen)
        )
        if others:
            lines.append(f"* other requests: {_code(others)}")
        lines.append(f"* ends of its answers: {_code({e.stop for e in seen if e.stop})}")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _paths(exchanges: Iterable[Exchange]) -> set[str]:
    return {f"{exchange.method} {exchange.path} ({exchange.status})" for exchange in exchanges}


def _union(exchanges: Iterable[Exchange], name: str) -> set[str]:
    return {value for exchange in exchanges for value in getattr(exchange, name)}


def _top(fields: Iterable[str]) -> set[str]:
    return {field for field in fields if "." not in field.partition("=")[0] and "[" not in field}


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"


def _refused(outcomes: Sequence[Outcome]) -> str:
    found: dict[tuple[str, int, str, str], Counter[str]] = {}  # in how many requests of each scenario
    for outcome in outcomes:
        for e in outcome.generations:
            if e.status >= 400:
                found.setdefault((outcome.agent.name, e.status, e.refused_by, e.reason), Counter())[
                    outcome.scenario.title
                ] += 1
    rows = [_row(["agent", "scenarios", "status", "times", "by", "reason"]), _row(["---"] * 6)]
    for (name, status, refused_by, reason), times in found.items():
        rows.append(_row([name, ", ".join(times), status, times.total(), refused_by, reason]))
    return "\n".join(rows) + "\n" if found else "None.\n"


def _others(outcomes: Sequence[Outcome]) -> str:
    lines = []
    for outcome in outcomes:
        problems = [problem for problem in outcome.problems if " answered " not in problem]
        refused = any(exchange.status >= 400 for exchange in outcome.generations)
        if problems and not refused:
            lines.append(f"* {outcome.agent.name}, {outcome.scenario.title}: {'; '.join(problems)}")
    return "\n".join(lines) + "\n" if lines else "None.\n"
