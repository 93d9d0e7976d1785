"""Answers of the four endpoints, whole or streamed, as a client sees them."""

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]
Call = tuple[str, str, str]
"""The id, name and arguments."""


@dataclass
class Seen:
    """One choice of an answer, or why there is none."""

    reason: str = ""  # why it ended, in the endpoint's words
    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)
    deltas: list[list[int]] = field(default_factory=list, compare=False)  # token ids by event, if they were asked for
    status: int = 200
    problem: str = ""  # the body of a refusal, or the error event of a stream

    @property
    def is_good(self) -> bool:
        return self.status == 200 and not self.problem

    @property
    def ids(self) -> list[int]:
        return list(itertools.chain.from_iterable(self.deltas))

    @property
    def shown(self) -> tuple[str, str, str, list[Call]]:
        return self.reason, self.reasoning, self.content, self.calls


def whole(endpoint: str, answer: Body) -> list[Seen]:
    """The choices of an answer."""
    return _WHOLE[endpoint](answer)


def streamed(endpoint: str, events: list[Body]) -> list[Seen]:
    """The choices of a stream."""
    return _STREAMED[endpoint](events)


def join_calls(parts: Iterable[Body]) -> list[Call]:
    """The calls of a chat's stream from their parts, each with its call's index."""
    calls: dict[int, Call] = {}
    for part in parts:
        call_id, name, arguments = calls.get(part["index"], ("", "", ""))
        function = part["function"]
        calls[part["index"]] = (
            call_id + (part.get("id") or ""),
            name + (function.get("name") or ""),
            arguments + (function.get("arguments") or ""),
        )
    return list(calls.values())


def _chat(answer: Body) -> list[Seen]:
    seen = []
    for choice in sorted(answer["choices"], key=lambda choice: choice["index"]):
        message = choice["message"]
        parts = ({"index": at, **call} for at, call in enumerate(message.get("tool_calls") or ()))
        texts = message.get("reasoning") or "", message.get("content") or ""
        seen.append(Seen(choice["finish_reason"], *texts, join_calls(parts), [choice.get("token_ids") or []]))
    return seen


def _chat_stream(events: list[Body]) -> list[Seen]:
    found: dict[int, tuple[Seen, list[Body]]] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        delta = choice["delta"]
        seen, parts = found.setdefault(choice["index"], (Seen(), []))
        seen.reason = choice.get("finish_reason") or seen.reason
        seen.reasoning += delta.get("reasoning") or ""
        seen.content += delta.get("content") or ""
        seen.deltas.append(choice.get("token_ids") or [])
        parts += delta.get("tool_calls") or ()
    for seen, parts in found.values():
        seen.calls = join_calls(parts)
    return [seen for _, (seen, _) in sorted(found.items())]


def _responses(answer: Body) -> list[Seen]:
    items = answer["output"]
    reasoning, content = (
        "".join(part["text"] for item in items if item["type"] == kind for part in item.get("content") or ())
        for kind in ("reasoning", "message")
    )
    calls = [item for item in items if item["type"] in {"function_call", "custom_tool_call"}]
    # vLLM's prompt names a tool of a namespace NAMESPACE__NAME; a custom tool's text is the argument `input`, as in chats.
    names = ["__".join(filter(None, (call.get("namespace"), call["name"]))) for call in calls]
    arguments = [call["arguments"] if "arguments" in call else json.dumps({"input": call["input"]}) for call in calls]
    ids = [call["call_id"] for call in calls]
    return [Seen(answer["status"], reasoning, content, list(zip(ids, names, arguments, strict=True)))]


def _responses_stream(events: list[Body]) -> list[Seen]:
    ended = [event["response"] for event in events if event["type"] in {"response.completed", "response.incomplete"}]
    if len(ended) != 1:
        return [Seen(problem=f"the stream ends with {events[-1]['type']}")]
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    (seen,) = _responses({"status": ended[0]["status"], "output": items})
    seen.content = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    return [seen]


def _messages(answer: Body) -> list[Seen]:
    blocks = answer["content"]
    reasoning, content = ("".join(block.get(key) or "" for block in blocks) for key in ("thinking", "text"))
    calls = [
        (block["id"], block["name"], json.dumps(block["input"])) for block in blocks if block["type"] == "tool_use"
    ]
    return [Seen(answer["stop_reason"], reasoning, content, calls)]


def _messages_stream(events: list[Body]) -> list[Seen]:
    seen, blocks = Seen(), dict[int, Body]()
    for event in events:
        delta = event.get("delta") or {}
        if event["type"] == "content_block_start":
            blocks[event["index"]] = event["content_block"] | {"written": ""}
        elif event["type"] == "content_block_delta":
            seen.reasoning += delta.get("thinking") or ""
            seen.content += delta.get("text") or ""
            blocks[event["index"]]["written"] += delta.get("partial_json") or ""
        elif event["type"] == "message_delta":
            assert not seen.reason
            seen.reason = delta["stop_reason"]
    asked = (block for block in blocks.values() if block["type"] == "tool_use")
    seen.calls = [(block["id"], block["name"], _respelled(block["written"] or "{}")) for block in asked]
    return [seen]


def _respelled(text: str) -> str:
    """JSON as ``json.dumps`` writes it: a whole answer has arguments as objects."""
    return json.dumps(json.loads(text)) if is_json(text) else text


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _completions(answer: Body) -> list[Seen]:
    return [Seen(choice["finish_reason"], content=choice["text"]) for choice in answer["choices"]]


def _completions_stream(events: list[Body]) -> list[Seen]:
    found: dict[int, Seen] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        seen = found.setdefault(choice["index"], Seen())
        seen.reason = seen.reason or choice.get("finish_reason") or ""
        seen.content += choice["text"]
    return [seen for _, seen in sorted(found.items())]


_WHOLE: dict[str, Callable[[Body], list[Seen]]] = {
    "chat": _chat,
    "responses": _responses,
    "messages": _messages,
    "completions": _completions,
}
_STREAMED: dict[str, Callable[[list[Body]], list[Seen]]] = {
    "chat": _chat_stream,
    "responses": _responses_stream,
    "messages": _messages_stream,
    "completions": _completions_stream,
}
