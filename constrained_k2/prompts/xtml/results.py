"""Puts tool results in the order of their calls, as the checkpoint's encoder does before it renders."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

Message = tuple[str, Mapping[str, Any]]
"""A message with its location in the request."""


def in_order_of_calls(messages: Sequence[Message]) -> list[Message]:
    """Sort each run of consecutive tool messages by the position of the call that their id matches.

    Only calls of the last assistant message are matched; if several have one id, the first counts. The name of the
    matched call replaces the message's own. A run with a message that matches none stays as it is.
    """
    ordered: list[Message] = []
    calls: dict[str, tuple[int, Any]] = {}  # calls of the last assistant message: id -> position, name
    for role, run in groupby(messages, key=lambda message: message[1].get("role")):
        if role == "tool":
            ordered += _sorted(list(run), calls)
            continue
        ordered += run
        if role == "assistant":
            calls = _positions(ordered[-1][1].get("tool_calls"))
    return ordered


def function_of(call: object) -> Mapping[str, Any]:
    """The object with a call's name and arguments: ``function``, else the call itself."""
    if not isinstance(call, Mapping):
        return {}
    inner = call.get("function", call)
    return inner if isinstance(inner, Mapping) else {}


def _positions(calls: object) -> dict[str, tuple[int, Any]]:
    found: dict[str, tuple[int, Any]] = {}
    for position, call in enumerate(calls if isinstance(calls, list | tuple) else ()):
        if isinstance(call, Mapping) and call.get("id") is not None:
            found.setdefault(str(call["id"]), (position, function_of(call).get("name")))
    return found


def _sorted(run: list[Message], calls: Mapping[str, tuple[int, Any]]) -> list[Message]:
    ids = [message.get("tool_call_id", message.get("id")) for _, message in run]
    if any(given is None or str(given) not in calls for given in ids):
        return run
    matched = [(*calls[str(given)], entry) for given, entry in zip(ids, run, strict=True)]
    matched.sort(key=lambda match: match[0])
    return [(at, message if name is None else {**message, "tool": name}) for _, name, (at, message) in matched]
