"""Requests to a test's server, and what a client sees of their answers, whole or as a stream."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai

from constrained_k2 import ToolCallParser, Vocabulary
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.parsing import Completion
from constrained_k2.parsing.events import CallCut, CallFinished, Event, HeaderCut
from constrained_k2.request.spec import Tool
from scripts.bundled_samples.ordinary import TOOLS

MESSAGES = [{"role": "user", "content": "What's the weather like?"}]
WEATHER = TOOLS[0]
Call = tuple[str, str, str]
"""The id, name and arguments."""


def create(client: openai.OpenAI, **fields: Any) -> Any:
    defaults: dict[str, Any] = {
        "model": "kimi-k2",
        "messages": MESSAGES,
        "tools": [WEATHER],
        "max_tokens": 1000,
        "temperature": 1.0,
    }
    return client.chat.completions.create(**(defaults | fields))


def post(server: VllmServer, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json={"model": "kimi-k2"} | body, timeout=300, trust_env=False)


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream."""
    assert answer.is_success, answer.text
    lines = (line.removeprefix("data: ") for line in answer.text.splitlines())
    return [json.loads(line) for line in lines if line.startswith("{")]


@dataclass
class Seen:
    """One choice of an answer as a client sees it; the token ids come if they are asked for."""

    reason: str = ""
    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)
    deltas: list[list[int]] = field(default_factory=list)
    """Token ids, by the events of a stream."""

    @property
    def ids(self) -> list[int]:
        return list(itertools.chain.from_iterable(self.deltas))

    @property
    def shown(self) -> tuple[str, str, str, list[Call]]:
        return self.reason, self.reasoning, self.content, self.calls


def chat(server: VllmServer, *, stream: bool = False, **body: Any) -> Seen:
    """The only choice of a chat."""
    (choice,) = chat_choices(server, stream=stream, **body)
    return choice


def chat_choices(server: VllmServer, *, stream: bool = False, **body: Any) -> list[Seen]:
    """The choices of a chat, in order."""
    answer = post(server, "/v1/chat/completions", stream=stream, **({"messages": MESSAGES} | body))
    if not stream:
        assert answer.is_success, answer.text
        return [_whole(choice) for choice in sorted(answer.json()["choices"], key=lambda choice: choice["index"])]
    found: dict[int, tuple[Seen, dict[int, list[str]]]] = {}
    for choice in (choice for event in events(answer) for choice in event["choices"]):
        delta, ids = choice["delta"], choice.get("token_ids") or []
        seen, parts = found.setdefault(choice["index"], (Seen(), {}))
        seen.reason = choice["finish_reason"] or seen.reason
        seen.reasoning += delta.get("reasoning") or ""
        seen.content += delta.get("content") or ""
        seen.deltas.append(ids)
        for call in delta.get("tool_calls") or ():
            part = parts.setdefault(call["index"], ["", "", ""])
            part[0] += call.get("id") or ""
            part[1] += call["function"].get("name") or ""
            part[2] += call["function"].get("arguments") or ""
    for seen, parts in found.values():
        seen.calls = [(part[0], part[1], part[2]) for part in parts.values()]
    return [seen for _, (seen, _) in sorted(found.items())]


def _whole(choice: dict[str, Any]) -> Seen:
    message = choice["message"]
    calls = [(call["id"], *call["function"].values()) for call in message.get("tool_calls") or ()]
    texts = message.get("reasoning") or "", message["content"] or ""
    return Seen(choice["finish_reason"], *texts, calls, [choice.get("token_ids") or []])


def expected(
    ids: Sequence[int], vocabulary: Vocabulary, *, length: bool, stream: bool, tools: Sequence[str] = ("get_weather",)
) -> tuple[Any, ...]:
    """Return the choice that a client should see if the model writes these tokens and then, unless cut, ends its turn."""
    ids = ids if length else [*ids, vocabulary.format.turn_end]
    parser = ToolCallParser(vocabulary, level="tolerant", tools=[*map(Tool, tools)])
    events = [*parser.feed(ids), *parser.finish()]
    cut = length or any(isinstance(event, CallCut | HeaderCut) for event in events)
    completion = Completion.from_events(events)
    calls = Completion.from_events(_as_shown(events)).tool_calls if stream else completion.tool_calls
    reason = "length" if cut else "tool_calls" if completion.tool_calls else "stop"
    return reason, completion.reasoning, completion.content, [(c.id, c.name, c.arguments) for c in calls]


def _as_shown(events: list[Event]) -> list[Event]:
    """A stream shows what there is of a call that is cut off later."""
    return [CallFinished(event.position) if isinstance(event, CallCut) else event for event in events]


def respond(server: VllmServer, *, stream: bool = False, **body: Any) -> dict[str, Any]:
    """The completed response of OpenAI's endpoint; a stream's pieces of arguments are those of its items."""
    answer = post(server, "/v1/responses", stream=stream, **body)
    if not stream:
        assert answer.is_success, answer.text
        return dict(answer.json())
    seen = events(answer)
    assert seen[-1]["type"] == f"response.{seen[-1]['response']['status']}", seen[-1]
    items = [event["item"] for event in seen if event["type"] == "response.output_item.done"]
    assert seen[-1]["response"]["output"] == items
    written: dict[str, str] = {}
    for event in seen:
        if event["type"] == "response.function_call_arguments.delta":
            written[event["item_id"]] = written.get(event["item_id"], "") + event["delta"]
    functions = [item for item in items if item["type"] == "function_call"]
    assert [written[item["id"]] for item in functions] == [item["arguments"] for item in functions]
    return dict(seen[-1]["response"])


def called(response: dict[str, Any]) -> list[Call]:
    """The calls of a response."""
    items = (item for item in response["output"] if item["type"] == "function_call")
    return [(item["call_id"], item["name"], item["arguments"]) for item in items]


def claude(server: VllmServer, *, stream: bool = False, **body: Any) -> Seen:
    """The message of Anthropic's endpoint."""
    answer = post(server, "/v1/messages", stream=stream, **({"messages": MESSAGES} | body))
    seen = Seen()
    if not stream:
        assert answer.is_success, answer.text
        blocks, seen.reason = answer.json()["content"], answer.json()["stop_reason"]
        seen.calls = [
            (block["id"], block["name"], json.dumps(block["input"])) for block in blocks if block["type"] == "tool_use"
        ]
    else:
        blocks, started, written = [], dict[int, Any](), dict[int, str]()
        for event in events(answer):
            delta = event.get("delta", {})
            if event["type"] == "content_block_start":
                started[event["index"]] = event["content_block"]
            elif event["type"] == "content_block_delta":
                blocks.append(delta)
                written[event["index"]] = written.get(event["index"], "") + delta.get("partial_json", "")
            elif event["type"] == "message_delta":
                assert not seen.reason
                seen.reason = delta["stop_reason"]
        seen.calls = [
            (block["id"], block["name"], written.get(at) or "{}")
            for at, block in started.items()
            if block["type"] == "tool_use"
        ]
    seen.reasoning, seen.content = ("".join(block.get(key) or "" for block in blocks) for key in ("thinking", "text"))
    return seen
