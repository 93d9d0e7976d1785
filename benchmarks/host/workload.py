"""The workload: tool lists of every length, and turns that call them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.front_ends.raw import is_in_string
from benchmarks.host.instances import instance_of
from benchmarks.servers.new_tools import extended
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.testing import write_tokenizer
from constrained_k2.vocabulary.vocabulary import Vocabulary
from scripts.bundled_samples.ordinary import TOOLS
from scripts.fetch_data import data_path

StepPhase = Literal["text", "marker", "header", "string", "structure"]
REAL_TOKENIZER = data_path("kimi_k2/tokenizer")
PHASES: tuple[StepPhase, ...] = ("text", "marker", "header", "string", "structure")
TEXT = "I'll look that up for you. First the figures of last month, then what changed since; one moment, please."


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn."""

    ids: tuple[int, ...] = field(repr=False)  # its tokens, with the stop
    phases: tuple[StepPhase, ...] = field(repr=False)  # in arguments `string` for a token that begins inside a string


@dataclass(frozen=True, slots=True)
class Workload:
    """The vocabulary and the tools that a run uses."""

    vocabulary: Vocabulary  # the vocabulary
    tools: tuple[dict[str, Any], ...] = field(repr=False)  # with distinct names and sample arguments
    source: str  # their origin, for the report

    def first(self, count: int) -> list[dict[str, Any]]:
        """Return ``count`` tools; after the last one, copies with one more property."""
        found: list[dict[str, Any]] = []
        for number in range(count):
            tool, copy = self.tools[number % len(self.tools)], number // len(self.tools)
            if copy:
                (tool,) = extended([tool], copy)
                tool["function"]["name"] += f"_v{copy}"
            found.append(tool)
        return found

    def turn(self, tools: list[dict[str, Any]], seed: int, calls: int = 2) -> Turn:
        """Return a turn with some text and then calls of tools, starting with the ``seed``-th."""
        markers = self.vocabulary.format
        steps: list[tuple[int, StepPhase]] = [(token, "text") for token in self.vocabulary.encode(TEXT)]
        steps.append((markers.section_begin, "text"))
        for index in range(calls):
            tool = tools[(seed + index) % len(tools)]["function"]
            steps.append((markers.call_begin, "marker"))
            header = self.vocabulary.encode(KIMI_K2.call_id(tool["name"], index))
            steps += [(token, "header") for token in (*header, markers.argument_begin)]
            arguments = json.dumps(instance_of(tool["parameters"], seed % 2), ensure_ascii=False)
            steps += _in_arguments(self.vocabulary, arguments)
            steps.append((markers.call_end, "structure"))
        steps += [(markers.section_end, "marker"), (markers.turn_end, "marker")]
        return Turn(tuple(token for token, _ in steps), tuple(phase for _, phase in steps))


def changed(tools: list[dict[str, Any]], index: int, version: int) -> list[dict[str, Any]]:
    """Return the tools with one schema changed, as from a client that loads tools on the fly."""
    return [*tools[:index], *extended([tools[index]], version), *tools[index + 1 :]]


def mcp_tools() -> list[dict[str, Any]]:
    """Return the tools of public MCP servers; without that data, the package's own ones."""
    servers = data_path("schemas/mcp-tools/livemcp_dev.jsonl")
    if not servers.is_file():
        return list(TOOLS)
    return [tool for line in servers.read_text("utf-8").splitlines() for tool in json.loads(line)["tools"]]


def load(scratch: Path, *, is_small: bool = False) -> Workload:
    """Load Kimi's vocabulary and :func:`mcp_tools`; if that data is absent, or ``is_small``, the package's samples.

    ``scratch``: folder for the small tokenizer's files.
    """
    if REAL_TOKENIZER.is_dir() and not is_small:
        vocabulary = Vocabulary.from_pretrained(REAL_TOKENIZER)
        tools = mcp_tools()
        source = "Kimi K2's vocabulary, tools of public MCP servers"
    else:
        scratch.mkdir(parents=True, exist_ok=True)
        write_tokenizer(scratch)
        vocabulary = Vocabulary.from_pretrained(scratch)
        tools = list(TOOLS)
        source = "a vocabulary of 1,024 ordinary tokens and the package's six tools (no data: run scripts.fetch_data)"
    usable = tuple(_usable(tools))
    return Workload(vocabulary, usable, f"{source}: {len(usable)} of {len(tools)} with arguments")


def _usable(tools: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    names: set[str] = set()
    for number, tool in enumerate(tools):
        function = {key: tool["function"][key] for key in ("name", "parameters") if key in tool["function"]}
        if function["name"] in names:
            function["name"] = f"{function['name']}_{number}"
        names.add(function["name"])
        function["parameters"] = function.get("parameters") or {"type": "object", "properties": {}}
        if all(instance_of(function["parameters"], seed) is not None for seed in range(2)):
            yield {"type": "function", "function": function}


def _in_arguments(vocabulary: Vocabulary, text: str) -> Iterator[tuple[int, StepPhase]]:
    before = b""
    for token in vocabulary.encode(text):
        yield token, "string" if is_in_string(before) else "structure"
        before += vocabulary.token_bytes(token)
