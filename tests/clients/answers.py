"""Answers of the four endpoints, whole or streamed, in one form."""

import json
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """The first choice of an answer, whole or put together from a stream.

    Attributes:
        status: The HTTP status.
        problem: The body of a refusal, or the error event of a stream.
        text: The text.
        calls: ``(id, name, arguments)`` of each call.
        end: Why it ended, in the endpoint's words.
    """

    status: int
    problem: str = ""
    text: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    end: str = ""

    @property
    def is_good(self) -> bool:
        """True if the request was taken and answered."""
        return self.status == 200 and not self.problem


def read(endpoint: str, status: int, content: str, *, stream: bool) -> Answer:
    """Read an answer's body."""
    if status != 200:
        return Answer(status, content[:500])
    if not stream:
        return _WHOLE[endpoint](json.loads(content))
    events = [json.loads(line[6:]) for line in content.splitlines() if line.startswith("data: {")]
    for event in events:
        if event.get("error") or event.get("type") in {"error", "response.failed"}:
            return Answer(status, json.dumps(event)[:500])
    return _without_cut_call(_STREAMED[endpoint](events)) if events else Answer(status, "an empty stream")


def _without_cut_call(answer: Answer) -> Answer:
    """Leave out a call that ``max_tokens`` cuts off: a whole answer does not have it, a stream has sent its beginning."""
    if answer.end not in {"length", "incomplete", "max_tokens"} or not answer.calls or _is_json(answer.calls[-1][2]):
        return answer
    return replace(answer, calls=answer.calls[:-1])


def _respelled(text: str) -> str:
    """JSON as ``json.dumps`` writes it: a whole answer has arguments as objects."""
    return json.dumps(json.loads(text)) if _is_json(text) else text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _chat(answer: dict[str, Any]) -> Answer:
    choice = answer["choices"][0]
    message = choice["message"]
    calls = (
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    )
    return Answer(200, text=message.get("content") or "", calls=tuple(calls), end=choice["finish_reason"])


def _chat_stream(events: list[dict[str, Any]]) -> Answer:
    text, end = "", ""
    calls: dict[int, list[str]] = {}
    for choice in (choice for event in events for choice in event["choices"] if choice["index"] == 0):
        delta = choice["delta"]
        text += delta.get("content") or ""
        end = choice.get("finish_reason") or end
        for part in delta.get("tool_calls") or ():
            call = calls.setdefault(part["index"], ["", "", ""])
            call[0] += part.get("id") or ""
            call[1] += part["function"].get("name") or ""
            call[2] += part["function"].get("arguments") or ""
    return Answer(200, text=text, calls=tuple((call[0], call[1], call[2]) for call in calls.values()), end=end)


def _responses(answer: dict[str, Any]) -> Answer:
    items = answer["output"]
    text = "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])
    return Answer(200, text=text, calls=_function_calls(items), end=answer["status"])


def _function_calls(items: list[dict[str, Any]]) -> tuple[tuple[str, str, str], ...]:
    """The calls of response items. vLLM's prompt names a tool of a namespace ``NAMESPACE__NAME``.

    A custom tool's text is the argument ``input``, as in chats.
    """
    calls = [item for item in items if item["type"] in {"function_call", "custom_tool_call"}]
    names = ("__".join(filter(None, (call.get("namespace"), call["name"]))) for call in calls)
    arguments = (call["arguments"] if "arguments" in call else json.dumps({"input": call["input"]}) for call in calls)
    return tuple((call["call_id"], *parts) for call, *parts in zip(calls, names, arguments, strict=True))


def _responses_stream(events: list[dict[str, Any]]) -> Answer:
    ended = [event["response"] for event in events if event["type"] in {"response.completed", "response.incomplete"}]
    if len(ended) != 1:
        return Answer(200, f"the stream ends with {events[-1]['type']}")
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    return Answer(200, text=text, calls=_function_calls(items), end=ended[0]["status"])


def _messages(answer: dict[str, Any]) -> Answer:
    blocks = answer["content"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = (
        (block["id"], block["name"], json.dumps(block["input"])) for block in blocks if block["type"] == "tool_use"
    )
    return Answer(200, text=text, calls=tuple(calls), end=answer["stop_reason"])


def _messages_stream(events: list[dict[str, Any]]) -> Answer:
    text, end = "", ""
    blocks: dict[int, list[str]] = {}
    for event in events:
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            blocks[event["index"]] = [event["content_block"]["id"], event["content_block"]["name"], ""]
        elif event["type"] == "content_block_delta":
            text += event["delta"].get("text", "")
            if "partial_json" in event["delta"]:
                blocks[event["index"]][2] += event["delta"]["partial_json"]
        elif event["type"] == "message_delta":
            end = event["delta"]["stop_reason"] or end
    calls = ((block[0], block[1], _respelled(block[2] or "{}")) for block in blocks.values())
    return Answer(200, text=text, calls=tuple(calls), end=end)


def _completions(answer: dict[str, Any]) -> Answer:
    return Answer(200, text=answer["choices"][0]["text"], end=answer["choices"][0]["finish_reason"])


def _completions_stream(events: list[dict[str, Any]]) -> Answer:
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == 0]
    ends = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    return Answer(200, text="".join(choice["text"] for choice in choices), end="".join(ends[:1]))


_WHOLE = {"chat": _chat, "responses": _responses, "messages": _messages, "completions": _completions}
_STREAMED = {
    "chat": _chat_stream,
    "responses": _responses_stream,
    "messages": _messages_stream,
    "completions": _completions_stream,
}
