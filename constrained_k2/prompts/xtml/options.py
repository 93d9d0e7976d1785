"""Reads the request options that change a Kimi K3 prompt: thinking, effort, tool choice and others."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from constrained_k2.errors import InvalidRequest, excerpt
from constrained_k2.request.spec import stated_thinking
from constrained_k2.request.values import boolean_at, object_at

Effort = Literal["low", "high", "max"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)
"""The accepted efforts. The sentence in the prompt also names ``medium``, which the checkpoint's encoder refuses."""

_KWARGS = "chat_template_kwargs"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """The options of a prompt, with the defaults of the checkpoint's encoder."""

    thinking: bool = True
    effort: Effort | None = "max"  # None for no message about it
    tool_choice: Literal["required", "none"] | None = None  # None for every other choice: only these have a message
    response_format: Mapping[str, Any] | None = None
    add_generation_prompt: bool = True


def read_options(body: Mapping[str, Any]) -> PromptOptions:
    """Read the options of a chat-completions request.

    Thinking is ``thinking`` (a boolean, or Moonshot's ``{"type": …}``), else ``thinking`` or ``enable_thinking`` of
    ``chat_template_kwargs``. The effort is ``thinking_effort`` of ``chat_template_kwargs`` (null for no message), else
    ``reasoning_effort`` there or in the body (``"none"`` turns thinking off), else ``thinking.effort``.

    Raises:
        InvalidRequest: A value is unknown; ``location`` is its path.
    """
    given = body.get(_KWARGS)
    kwargs = {} if given is None else object_at(_KWARGS, given)
    thinking = stated_thinking(body)
    for name in ("thinking", "enable_thinking"):
        if thinking is None:
            thinking = boolean_at(f"{_KWARGS}.{name}", kwargs.get(name))
    value, location = _stated_effort(body, kwargs)
    if value == "none" and location.endswith("reasoning_effort"):
        thinking = False if thinking is None else thinking
        value = "max"
    elif value is not None and value not in EFFORTS:
        raise InvalidRequest(f"unknown effort {excerpt(value)}", location, f"Use {', '.join(EFFORTS)}")
    form = body.get("response_format")
    choice = body.get("tool_choice")
    generate = boolean_at("add_generation_prompt", body.get("add_generation_prompt"))
    return PromptOptions(
        thinking=thinking is not False,
        effort=cast("Effort | None", value),
        tool_choice=choice if choice in ("required", "none") else None,
        response_format=None if form is None else object_at("response_format", form),
        add_generation_prompt=generate is not False,
    )


def _stated_effort(body: Mapping[str, Any], kwargs: Mapping[str, Any]) -> tuple[object, str]:
    """The first effort that the request states, with its location."""
    if "thinking_effort" in kwargs:
        return kwargs["thinking_effort"], f"{_KWARGS}.thinking_effort"
    thinking = body.get("thinking")
    inner = thinking.get("effort") if isinstance(thinking, Mapping) else None
    candidates = (
        (kwargs.get("reasoning_effort"), f"{_KWARGS}.reasoning_effort"),
        (body.get("reasoning_effort"), "reasoning_effort"),
        (inner, "thinking.effort"),
    )
    return next((each for each in candidates if each[0] is not None), ("max", ""))
