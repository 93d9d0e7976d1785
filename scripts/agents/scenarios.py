"""The scenarios: what the model answers, and what the agent is given."""

from pathlib import Path

from scripts.agents.catalogue import Agent, Scenario
from scripts.agents.scripted import Answer, Call, Sampled, Turn

NOTES = "notes.txt"
_LONG_TEXT = "The work goes on and on. " * 1500  # over 10,000 tokens: clients may take seconds to stop


def _tool_turns(agent: Agent, project: Path) -> list[Answer]:
    """Reasoning, text and a call; two calls, one of them failing; reasoning and a call. Without tools, two edits."""
    if not agent.tools:  # aider: an edit is a whole file in the text, and it sends the failed test that follows
        return [Turn(reasoning="First a look.", text=f"{NOTES}\n```\n{line}\n```\n") for line in ("three", "four")]
    return [
        Turn(reasoning="First a look.", text="I look.", calls=(agent.shell("echo one"),)),
        Turn(calls=(agent.read(project / NOTES), agent.shell("exit 3"))),
        Turn(reasoning="Once more. " * 10, calls=(agent.shell("echo three"),)),
    ]


def _known_turns(agent: Agent, project: Path) -> list[Answer]:
    patch = [] if agent.patch is None else [Turn(calls=(agent.patch,))]
    return [*patch, *_tool_turns(agent, project)]


def _mcp_turns(_agent: Agent, _project: Path) -> list[Answer]:
    asked = {"id": "7", "state": "open", "amount": 2.5, "filter": {"text": "late"}}
    first, second = Call("create_invoice_0", asked), Call("search_sensor_25", {"id": "8", "state": "closed"})
    return [Turn(calls=(first,)), Turn(text="Two more.", calls=(first, second))]


def _search_turns(agent: Agent, _project: Path) -> list[Answer]:
    search = Call(agent.tool_search, {"query": "select:mcp__many__create_invoice_0", "max_results": 3})
    return [Turn(calls=(search,)), Turn(calls=(Call("create_invoice_0", {"id": "7", "state": "open"}),))]


def _sampled_turns(_agent: Agent, _project: Path) -> list[Answer]:
    return [Sampled()] * 6


def _long_turn(_agent: Agent, _project: Path) -> list[Answer]:
    return [Turn(text=_LONG_TEXT)]


def _one_call(agent: Agent, _project: Path) -> list[Answer]:
    return [Turn(calls=(agent.shell("echo one"),))]


_ANSWER_SCHEMA = {
    "type": "object",
    "properties": {"found": {"type": "string"}},
    "required": ["found"],
    "additionalProperties": False,
}
SCENARIOS = (
    Scenario("turns", "tool turns", _tool_turns),
    Scenario("cancelled", "cancelled", _long_turn, cut=True),
    # What a random model asks for must do no harm: agents that run every command are left out.
    Scenario("sampled", "sampled", _sampled_turns, lambda agent: agent.tools and agent.sandboxed, careful=True),
    Scenario("many-tools", "60 more tools", _mcp_turns, lambda agent: agent.mcp, mcp_tools=60),
    Scenario(
        "tool-search",
        "tool search",
        _search_turns,
        lambda agent: bool(agent.tool_search),
        mcp_tools=60,
        tool_search=True,
    ),
    Scenario(
        "answer-schema",
        "answer schema",
        _one_call,
        lambda agent: agent.answer is not None,
        answer_schema=_ANSWER_SCHEMA,
    ),
    Scenario("known-model", "known model", _known_turns, lambda agent: bool(agent.known_model), known_model=True),
)
