"""The agents: what is installed, and how each runs one prompt without a terminal against a server on loopback."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scripts.agents.scripted import LAST, Answer, Call, Turn

MODEL = "kimi-k2"
_KEY = "none"  # the servers here ask for none, but every client wants one
ANSWER = {"found": "two lines"}
_MCP_TOOLS = str(Path(__file__).parent / "mcp_tools.py")


@dataclass(frozen=True)
class Scenario:
    """The model's answers and the agent's settings in one run; scenarios.py has them."""

    name: str
    title: str  # in the table of results
    turns: Callable[["Agent", Path], list[Answer]]  # of an agent and its project's folder
    fits: Callable[["Agent"], bool] = lambda _agent: True
    mcp_tools: int = 0  # this many tools of an MCP server beside the agent's own
    answer_schema: dict[str, Any] | None = None  # what the agent is told its last answer must fit
    careful: bool = False  # nothing that the model asks for may change a file or start a program
    cut: bool = False  # the agent is interrupted while the answer streams
    known_model: bool = False  # under a model name that the client knows
    tool_search: bool = False  # the agent may keep tools back until the model searches for them


@dataclass(frozen=True)
class Job:
    """The inputs of one run of an agent."""

    folder: Path  # where the agents are installed
    home: Path
    project: Path
    url: str  # of the proxy, without /v1
    prompt: str
    scenario: Scenario
    answer_schema: Path | None  # a file with the scenario's
    model: str


@dataclass(frozen=True)
class Launch:
    """A process to start in the project's folder."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[Path, str] = field(default_factory=dict)


def _with(tool: str, key: str) -> Callable[[str | Path], Call]:
    return lambda argument: Call(tool, {key: str(argument)})


def _cat(tool: str, key: str) -> Callable[[Path], Call]:
    return lambda path: Call(tool, {key: f"cat {path}"})


@dataclass(frozen=True, eq=False)
class Agent:
    """A client on one endpoint: its package and how it is started."""

    name: str
    packages: tuple[str, ...]  # what is installed, its own package first, each with its version
    program: str  # the executable that the package installs
    endpoint: str
    launch: Callable[["Agent", Job], Launch]
    shell: Callable[[str], Call]  # a call that runs a shell command
    read: Callable[[Path], Call]  # a call that reads a file
    tool_search: str = ""  # the tool by which the model asks for tools that the agent keeps back
    patch: Call | None = None  # of a custom tool with a grammar, which it declares to a model that it knows
    known_model: str = ""  # a model name for which it sends other fields than for a name that it does not know
    last: Turn = LAST  # the turn that ends its work
    answer: Turn | None = None  # the turn that ends its work where it was given a schema of the answer
    mcp: bool = True  # takes MCP servers
    tools: bool = True  # sends tools
    sandboxed: bool = True  # can be told to start no program and to change no file

    def executable(self, folder: Path) -> str:
        """Path of the program."""
        return str(folder / self.program / ("node_modules/.bin" if self.from_npm else "bin") / self.program)

    @property
    def from_npm(self) -> bool:
        """True for a package of the npm registry, False for one of PyPI."""
        return "==" not in self.packages[0]

    @property
    def version(self) -> str:
        """The version of its own package."""
        return self.packages[0].rpartition("@" if self.from_npm else "==")[2]


def _mcp_command(count: int) -> list[str]:
    return [sys.executable, _MCP_TOOLS, str(count)]


def _mcp_servers(count: int) -> dict[str, Any]:
    command, *arguments = _mcp_command(count)
    return {"many": {"command": command, "args": arguments}} if count else {}


def _claude_code(agent: Agent, job: Job) -> Launch:
    allowed = "Read Glob Grep mcp__many" + ("" if job.scenario.careful else " Bash")
    command = [agent.executable(job.folder), "-p", job.prompt, "--model", job.model, "--output-format", "stream-json"]
    command += ["--verbose", "--include-partial-messages", "--allowedTools", allowed]
    if job.scenario.mcp_tools:
        command += [
            "--strict-mcp-config",
            "--mcp-config",
            json.dumps({"mcpServers": _mcp_servers(job.scenario.mcp_tools)}),
        ]
    if job.answer_schema:
        command += ["--json-schema", job.answer_schema.read_text()]
    environment = {
        "ENABLE_TOOL_SEARCH": str(job.scenario.tool_search).lower(),
        "ANTHROPIC_BASE_URL": job.url,
        "ANTHROPIC_API_KEY": _KEY,
        "ANTHROPIC_SMALL_FAST_MODEL": job.model,
        **dict.fromkeys((f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU")), job.model),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    return Launch(command, environment)


def _codex(agent: Agent, job: Job) -> Launch:
    table: dict[str, Any] = {
        "model": job.model,
        "model_provider": "local",
        "approval_policy": "never",
        "sandbox_mode": "read-only" if job.scenario.careful else "danger-full-access",
        "check_for_update_on_startup": False,
        "model_context_window": 131072,
        "analytics.enabled": False,
        "model_supports_reasoning_summaries": True,  # as for a thinking model: it then sends `reasoning`
        "model_providers.local.name": "local",
        "model_providers.local.base_url": f"{job.url}/v1",
        "model_providers.local.wire_api": "responses",
    }
    for name, server in _mcp_servers(job.scenario.mcp_tools).items():
        table |= {f"mcp_servers.{name}.{key}": value for key, value in server.items()}
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())  # JSON's values are TOML's too
    command = [agent.executable(job.folder), "exec", "--skip-git-repo-check", "--json", job.prompt]
    if job.answer_schema:
        command += ["--output-schema", str(job.answer_schema)]
    return Launch(command, {}, {job.home / ".codex" / "config.toml": lines})


_AI_SDK = {  # the client library of opencode that speaks an endpoint's protocol
    "/v1/chat/completions": "@ai-sdk/openai-compatible",
    "/v1/responses": "@ai-sdk/openai",
    "/v1/messages": "@ai-sdk/anthropic",
}


def _opencode(agent: Agent, job: Job) -> Launch:
    limit = {"context": 131072, "output": 8000}
    model = {"name": job.model, "tool_call": True, "reasoning": True, "limit": limit}
    permission = dict.fromkeys(("bash", "edit", "webfetch"), "deny" if job.scenario.careful else "allow")
    config: dict[str, Any] = {
        "provider": {
            "local": {
                "npm": _AI_SDK[agent.endpoint],
                "options": {"baseURL": f"{job.url}/v1", "apiKey": _KEY},
                "models": {job.model: model},
            }
        },
        "model": f"local/{job.model}",
        "small_model": f"local/{job.model}",
        "autoupdate": False,
        "share": "disabled",
        "permission": permission,
    }
    if job.scenario.mcp_tools:
        config["mcp"] = {"many": {"type": "local", "command": _mcp_command(job.scenario.mcp_tools), "enabled": True}}
    command = [agent.executable(job.folder), "run", "--format", "json", "--print-logs", job.prompt]
    names = ("DISABLE_AUTOUPDATE", "DISABLE_MODELS_FETCH", "DISABLE_LSP_DOWNLOAD", "DISABLE_DEFAULT_PLUGINS")
    environment = {f"OPENCODE_{name}": "1" for name in names}
    return Launch(command, environment, {job.home / ".config" / "opencode" / "opencode.json": json.dumps(config)})


def _qwen_code(agent: Agent, job: Job) -> Launch:
    settings = {
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
        "mcpServers": {name: server | {"trust": True} for name, server in _mcp_servers(job.scenario.mcp_tools).items()},
    }
    mode = "default" if job.scenario.careful else "yolo"
    kind = "anthropic" if agent.endpoint == "/v1/messages" else "openai"
    command = [agent.executable(job.folder), "-p", job.prompt, "--auth-type", kind, "--approval-mode", mode]
    command += ["--output-format", "stream-json", "--model", job.model]
    if job.answer_schema:
        command += ["--json-schema", job.answer_schema.read_text()]
    if not job.scenario.tool_search:
        command += ["--exclude-tools", "tool_search"]
    environment = {"OPENAI_API_KEY": _KEY, "OPENAI_BASE_URL": f"{job.url}/v1", "OPENAI_MODEL": job.model}
    environment |= {"ANTHROPIC_API_KEY": _KEY, "ANTHROPIC_BASE_URL": job.url, "ANTHROPIC_MODEL": job.model}
    # By default it sends messages a thinking budget of 32,000 tokens beside max_tokens 8,000, which the API refuses.
    environment |= {"QWEN_CODE_MAX_OUTPUT_TOKENS": "40000"} if kind == "anthropic" else {}
    return Launch(command, environment, {job.home / ".qwen" / "settings.json": json.dumps(settings)})


def _aider(agent: Agent, job: Job) -> Launch:
    # A test that fails after every edit, so that it asks again.
    command = [agent.executable(job.folder), "--message", job.prompt, "--auto-test", "--test-cmd", "exit 3"]
    off = ("analytics", "check-update", "show-model-warnings", "git", "pretty", "show-release-notes", "detect-urls")
    command += ["--yes-always", *(f"--no-{name}" for name in off), "--file", "notes.txt"]
    command += ["--model", f"openai/{job.model}", "--openai-api-base", f"{job.url}/v1", "--openai-api-key", _KEY]
    return Launch(command, {"LITELLM_LOCAL_MODEL_COST_MAP": "True"})


def _mini_swe_agent(agent: Agent, job: Job) -> Launch:
    command = [agent.executable(job.folder), "--task", job.prompt, "--yolo", "--exit-immediately"]
    command += ["--model", f"openai/{job.model}"]
    command += ["--model-class", "litellm_response"] if agent.endpoint == "/v1/responses" else []
    environment = {
        "OPENAI_API_BASE": f"{job.url}/v1",
        "OPENAI_API_KEY": _KEY,
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_SILENT_STARTUP": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    return Launch(command, environment)


_AGENTS = (
    Agent(
        name="claude-code",
        packages=("@anthropic-ai/claude-code@2.1.197",),
        program="claude",
        endpoint="/v1/messages",
        launch=_claude_code,
        shell=_with("Bash", "command"),
        read=_with("Read", "file_path"),
        tool_search="ToolSearch",
        known_model="claude-sonnet-4-5",
        answer=Turn(calls=(Call("StructuredOutput", ANSWER),)),
    ),
    Agent(
        name="codex",
        packages=("@openai/codex@0.169.0",),
        program="codex",
        endpoint="/v1/responses",
        launch=_codex,
        shell=_with("exec_command", "cmd"),
        read=_cat("exec_command", "cmd"),
        known_model="gpt-5.5",
        patch=Call("apply_patch", {"input": '*** Begin Patch\n*** Add File: new.txt\n+"one"\n*** End Patch\n'}),
        answer=Turn(text=json.dumps(ANSWER)),
    ),
    Agent(
        name="opencode",
        packages=("opencode-ai@1.18.33",),
        program="opencode",
        endpoint="/v1/chat/completions",
        launch=_opencode,
        shell=_with("bash", "command"),
        read=_with("read", "filePath"),
    ),
    Agent(
        name="qwen-code",
        packages=("@qwen-code/qwen-code@0.15.10",),
        program="qwen",
        endpoint="/v1/chat/completions",
        launch=_qwen_code,
        shell=_with("run_shell_command", "command"),
        read=_with("read_file", "file_path"),
        tool_search="tool_search",
        answer=Turn(calls=(Call("structured_output", ANSWER),)),
    ),
    Agent(
        name="aider",
        packages=("aider-chat==0.86.2",),
        program="aider",
        endpoint="/v1/chat/completions",
        launch=_aider,
        shell=_with("", "command"),
        read=_with("", "path"),
        tools=False,
        mcp=False,
    ),
    Agent(
        name="mini-swe-agent",
        packages=("mini-swe-agent==2.4.6", "mcp==2.3.0"),  # its litellm imports mcp without asking for it
        program="mini",
        endpoint="/v1/chat/completions",
        launch=_mini_swe_agent,
        shell=_with("bash", "command"),
        read=_cat("bash", "command"),
        last=Turn(calls=(Call("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}),)),
        mcp=False,
        sandboxed=False,
    ),
)
_OTHER_ENDPOINTS = {"opencode": ("/v1/responses", "/v1/messages"), "qwen-code": ("/v1/messages",),
                    "mini-swe-agent": ("/v1/responses",)}  # fmt: skip


def _on(agent: Agent, endpoint: str) -> Agent:
    return replace(agent, name=f"{agent.name}-{endpoint.rpartition('/')[2]}", endpoint=endpoint)


AGENTS = tuple(
    variant
    for agent in _AGENTS
    for variant in (agent, *(_on(agent, endpoint) for endpoint in _OTHER_ENDPOINTS.get(agent.name, ())))
)
