"""A chat completion as the server gave it, streamed or whole, in one form."""

from dataclasses import dataclass, field
from typing import Any

from constrained_k2.errors import kind_of_json
from constrained_k2.evaluation.scores import Answer


class Unusable(Exception):
    """The server gave no answer that means anything: too long, too late, cut off, not JSON, an error of its own."""


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """One choice of an answer.

    Attributes:
        finish_reason: The server's.
        content: The text.
        reasoning: The reasoning, where the server keeps it apart.
        calls: ``(id, name, arguments)`` of every tool call.
        token_ids: What the model wrote; None where the server does not say.
        prompt_ids: What the model read; the same.
        tokens: How many tokens the model wrote in all choices, as the server counts; None where it does not.
    """

    finish_reason: str = ""
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    token_ids: tuple[int, ...] | None = field(default=None, repr=False)
    prompt_ids: tuple[int, ...] | None = field(default=None, repr=False)
    tokens: int | None = None

    @property
    def said(self) -> tuple[str, str, str, tuple[tuple[str, str, str], ...]]:
        """What a client sees of it."""
        return (self.finish_reason, self.reasoning, self.content, self.calls)

    @property
    def scored(self) -> Answer:
        """The form that scores are made of."""
        return Answer(self.finish_reason, self.content, self.calls)


def read_whole(body: Any) -> list[ChatAnswer]:
    """The choices of an answer that came in one piece.

    Raises:
        Unusable: It is no chat completion.
    """
    choices = member(body, "choices", list, "the answer")
    if not choices:
        raise Unusable("the answer has no choices")
    prompt_ids = _ids(member(body, "prompt_token_ids", list, "the answer"))
    tokens = member(member(body, "usage", dict, "the answer") or {}, "completion_tokens", int, "usage")
    answers = []
    for number, choice in enumerate(choices):
        place = f"choices[{number}]"
        message = member(choice, "message", dict, place) or {}
        answers.append(
            ChatAnswer(
                member(choice, "finish_reason", str, place) or "",
                member(message, "content", str, place) or "",
                _reasoning(message, place),
                tuple(_call(call, place) for call in member(message, "tool_calls", list, place) or ()),
                _ids(member(choice, "token_ids", list, place)),
                prompt_ids,
                tokens,
            )
        )
    return answers


def read_stream(events: list[Any]) -> ChatAnswer:
    """The one choice of a stream, put together as a client does.

    Raises:
        Unusable: The events are no chat completion.
    """
    finish_reason, content, reasoning = "", "", ""
    calls: dict[int, list[str]] = {}
    token_ids: tuple[int, ...] | None = None
    for event in events:
        for choice in member(event, "choices", list, "an event") or ():
            delta = member(choice, "delta", dict, "choices[0]") or {}
            finish_reason = member(choice, "finish_reason", str, "choices[0]") or finish_reason
            content += member(delta, "content", str, "delta") or ""
            reasoning += _reasoning(delta, "delta")
            if (ids := _ids(member(choice, "token_ids", list, "choices[0]"))) is not None:
                token_ids = (token_ids or ()) + ids
            for part in member(delta, "tool_calls", list, "delta") or ():
                index = member(part, "index", int, "tool_calls") or 0
                call = calls.setdefault(index, ["", "", ""])
                for number, text in enumerate(_call(part, "tool_calls")):
                    call[number] += text
    whole = tuple((call[0], call[1], call[2]) for call in calls.values())
    return ChatAnswer(finish_reason, content, reasoning, whole, token_ids)


def member(value: Any, name: str, kind: type, place: str) -> Any:
    """A field of an object in an answer; None where it is absent or null.

    Raises:
        Unusable: The value is no object, or the field is of another type.
    """
    if not isinstance(value, dict):
        raise Unusable(f"{place} is {kind_of_json(value)}, not an object")
    found = value.get(name)
    # A boolean is an int to Python, but no number to JSON.
    if found is not None and (not isinstance(found, kind) or (kind is int and isinstance(found, bool))):
        raise Unusable(f"{place}.{name} is {kind_of_json(found)}")
    return found


def _reasoning(message: Any, place: str) -> str:
    """The field of vLLM, or the one that Moonshot's own server and older vLLMs use."""
    return member(message, "reasoning", str, place) or member(message, "reasoning_content", str, place) or ""


def _call(call: Any, place: str) -> tuple[str, str, str]:
    place = f"{place}.tool_calls"
    function = member(call, "function", dict, place) or {}
    return (
        member(call, "id", str, place) or "",
        member(function, "name", str, place) or "",
        member(function, "arguments", str, place) or "",
    )


def _ids(values: list[Any] | None) -> tuple[int, ...] | None:
    if values is None:
        return None
    if not all(type(value) is int for value in values):
        raise Unusable("token ids are no integers")
    return tuple(values)
