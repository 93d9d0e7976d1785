"""Ordinary requests: realistic tools, every tool choice, streamed and not, with and without history."""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from constrained_k2.evaluation.sample import Sample

TOOLS: tuple[dict[str, Any], ...] = tuple(
    {"type": "function", "function": json.loads(line)}
    for line in (Path(__file__).parent / "tools.jsonl").read_text("utf-8").splitlines()
)
"""Tools with enums, patterns, nested objects, unions and, in one case, no parameters."""

_ASKS = (
    "What's the weather like in Beijing this week?",
    "Find me a morning flight from Berlin to Tokyo.",
    "Set up the design review with Ana and 李雷.",
    "How many orders came from Norway last month?",
    "How much is 250 euros in yen?",
    "Which tabs do I have open?",
)
_CALL = {
    "id": "functions.list_open_tabs:0",
    "type": "function",
    "function": {"name": "list_open_tabs", "arguments": "{}"},
}
_HISTORY: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": "Which tabs do I have open?"},
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": _CALL["id"], "content": '["mail", "news"]'},
    {"role": "assistant", "content": "Mail and news."},
)


def ordinary_samples(count: int, seed: int = 0) -> Iterator[Sample]:
    """Samples that cover tool choices and streaming evenly, and single calls and histories by chance."""
    chance = random.Random(seed)  # noqa: S311 - choosing samples
    kinds = itertools.cycle(itertools.product(("required", "named", "auto", "required", "none"), (False, True)))
    for number, (choice, stream) in zip(range(count), kinds, strict=False):
        tools = chance.sample(TOOLS, chance.randint(2, len(TOOLS)))
        has_history = chance.random() < 0.3
        messages = [*(_HISTORY if has_history else ()), {"role": "user", "content": chance.choice(_ASKS)}]
        body: dict[str, Any] = {"messages": messages, "tools": tools, "tool_choice": choice}
        if choice == "named":
            name = chance.choice(tools)["function"]["name"]
            body["tool_choice"] = {"type": "function", "function": {"name": name}}
        elif chance.random() < 0.3:
            body["parallel_tool_calls"] = False
        yield Sample(number, "ordinary", body, stream=stream)
