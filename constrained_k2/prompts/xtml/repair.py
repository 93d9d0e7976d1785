"""Repairs chat histories for Kimi K3, so each tool result is rendered under the right function.

XTML has no ids of calls: the encoder matches results to the calls of the last assistant message by the client's ids,
and writes the function's name and a position. Texts need no repair, since their special tokens stay text.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from constrained_k2.errors import InvalidRequest, excerpt, kind_of_json
from constrained_k2.formats.kimi_k3 import IMAGE_PLACEHOLDER
from constrained_k2.prompts.content import text_of
from constrained_k2.prompts.forms import IPYTHON, call_form, message_form, name_in, usable_name
from constrained_k2.prompts.pairing import Call, Pairing, Result
from constrained_k2.prompts.special_text import SpecialTexts
from constrained_k2.prompts.text_repairs import Repair, TextRepairs
from constrained_k2.request.values import array_at, object_at

IMAGE_PARTS = frozenset({"image", "image_url", "input_image", "image_pil", "image_embeds"})
"""Types of parts that are images."""

_ROLES = frozenset({"assistant", "system", "tool", "user"})
_HANDLED = frozenset({"role", "content", "tools", "tool_calls", "tool_call_id"})


def repair_history(body: object) -> tuple[dict[str, Any], list[Repair]]:
    """Repair the ``messages`` of a chat-completions request.

    * Each call has an id of its own in its message, and each result the id of its call
      (:class:`constrained_k2.prompts.pairing.Pairing`). A result that the encoder could not match carries the
      function's name.
    * Messages of older and other APIs are rewritten (:mod:`constrained_k2.prompts.forms`), contents that are neither
      text nor images become text, and blank arguments become ``{}``.
    * Tools of a system message with content become a message of their own; tools of other messages are dropped.
    * Lone surrogates are replaced. In a request with images, a text that spells the placeholder of an image is broken,
      since servers would take it for one.

    ``body`` is never changed; the result, returned with the changes in order, shares the values that need no repair.
    Repairing a result changes nothing.

    Raises:
        InvalidRequest: A value has no clear meaning; ``location`` names the message.
    """
    given = object_at("body", body)
    messages = array_at("messages", given.get("messages"))
    repairs = TextRepairs(SpecialTexts({IMAGE_PLACEHOLDER} if _has_image(messages) else ()))
    changed: dict[str, Any] = {}
    if given.get("tools") is not None:
        changed["tools"] = repairs.clean(array_at("tools", given["tools"]), "tools")
    changed["messages"] = _Dialog(repairs, _only_name(changed.get("tools")), _ids_in(messages)).messages(messages)
    return given | changed if repairs.repairs else given, repairs.repairs


def _has_image(messages: Sequence[Any]) -> bool:
    contents = [message.get("content") for message in messages if isinstance(message, Mapping)]
    parts = (part for content in contents if isinstance(content, list | tuple) for part in content)
    return any(isinstance(part, Mapping) and part.get("type") in IMAGE_PARTS for part in parts)


def _only_name(tools: Any) -> str | None:
    names = [tool["function"].get("name") for tool in tools or () if _is_function(tool)]
    return names[0] if len(names) == 1 and isinstance(names[0], str) else None


def _ids_in(messages: Sequence[Any]) -> set[str]:
    """All ids of calls and results that the client gave."""
    found = [message for message in messages if isinstance(message, Mapping)]
    calls = (message.get("tool_calls") for message in found)
    found += (call for made in calls if isinstance(made, list | tuple) for call in made if isinstance(call, Mapping))
    given = (_text(entry.get(field)) for entry in found for field in ("id", "tool_call_id"))
    return set(filter(None, given))


def _is_function(tool: object) -> bool:
    return isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping)


class _Dialog:
    def __init__(self, repairs: TextRepairs, only_name: str | None, taken: set[str]) -> None:
        self._repairs = repairs
        self._only_name = only_name  # name of the only declared tool
        self._taken = taken  # all ids of the dialog
        self._spare = count()  # numbers for new ids
        self._pairing = Pairing()
        self._ids: frozenset[str] = frozenset()  # ids of the last assistant message's calls

    def messages(self, messages: Sequence[Any]) -> list[dict[str, Any]]:
        repaired: list[dict[str, Any]] = []
        run: list[tuple[str, dict[str, Any]]] = []  # consecutive results, paired together
        for number, message in enumerate(messages):
            location = f"messages[{number}]"
            new = self._message(message, location)
            if new["role"] == "tool":
                run.append((location, new))
                continue
            repaired += self._paired(run)
            run = []
            if new["role"] == "assistant":
                at = f"{location}.tool_calls"
                calls = self._calls(new.get("tool_calls") or (), at)
                if new.get("tool_calls") is not None:
                    new["tool_calls"] = calls
            repaired += self._split(new, location)
        return repaired + self._paired(run)

    def _message(self, message: object, location: str) -> dict[str, Any]:
        """Repair everything in a message but its ids and its tools."""
        new = message_form(message, location, self._repairs)
        if new["role"] == IPYTHON:
            new["role"] = self._repairs.change(f"{location}.role", "role", before=IPYTHON, after="tool")
        role: str = new["role"]
        if role not in _ROLES:
            remedy = "Use assistant, system, tool or user"
            raise InvalidRequest(f"unknown role {excerpt(role)}", f"{location}.role", remedy)
        at = f"{location}.content"
        if "content" in new:
            new["content"] = self._repairs.clean(self._content(new["content"], role, at), at)
        if not isinstance(name := new.get("name"), str | None):
            raise InvalidRequest(f"must be a string, not {kind_of_json(name)}", f"{location}.name")
        for field, value in new.items():
            if field not in _HANDLED:
                new[field] = self._repairs.clean(value, f"{location}.{field}")
        return new

    def _content(self, content: object, role: str, location: str) -> Any:
        if content is None or isinstance(content, str):
            return content
        if isinstance(content, list | tuple) and all(map(_is_plain_part, content)):
            return content
        after = text_of(content, role, location, calls=False)
        return self._repairs.change(location, "content", before=content, after=after)

    def _split(self, message: dict[str, Any], location: str) -> list[dict[str, Any]]:
        """Move the tools of a message to a system message of their own, since the encoder reads them only there."""
        tools = message.get("tools")
        if tools is None:
            return [message]
        at = f"{location}.tools"
        rest = {key: value for key, value in message.items() if key != "tools"}
        if message["role"] != "system":
            self._repairs.change(at, "tool", before=tools, after=None)
            return [rest]
        tools = self._repairs.clean(array_at(at, tools), at)
        if not message.get("content") or not tools:
            return [{**message, "tools": tools}]
        declared = {"role": "system", "tools": tools}
        return [rest, self._repairs.change(at, "tool", before=tools, after=declared)]

    def _calls(self, calls: object, location: str) -> list[dict[str, Any]]:
        """Repair calls, and give a new id to calls without one, or with the id of an earlier call in the message."""
        entries = array_at(location, calls)
        made: dict[str, Call] = {}
        repaired = []
        for position, given in enumerate(entries):
            here = f"{location}[{position}]"
            call = call_form(given, here, self._only_name, self._repairs)
            name, given_id = call["function"]["name"], call.get("id")
            arguments = call["function"]["arguments"]
            if isinstance(arguments, str) and not arguments.strip():
                at = f"{here}.function.arguments"
                call["function"]["arguments"] = self._repairs.change(at, "shape", before=arguments, after="{}")
            if not isinstance(given_id, str) or not given_id or given_id in made:
                fresh = f"{name}:{position}"  # vLLM's renderer knows the calls by this name too
                while fresh in self._taken:
                    fresh = f"{name}:{next(self._spare)}"
                self._taken.add(fresh)
                call["id"] = self._repairs.change(f"{here}.id", "call id", before=given_id, after=fresh)
            made[call["id"]] = Call(_text(given_id), name, call["id"])
            repaired.append(call)
        self._ids = frozenset(made)
        if made:
            self._pairing.add_turn(list(made.values()))
        return repaired

    def _paired(self, run: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        """Give results the ids of their calls, and the name of the function if the ids do not identify it."""
        given = [
            Result(_text(message.get("tool_call_id", message.get("id"))), _text(_named(message))) for _, message in run
        ]
        calls = self._pairing.pair(given)
        is_matched = all(call is not None and call.id in self._ids for call in calls)
        repaired: list[dict[str, Any]] = []
        for (location, message), result, call in zip(run, given, calls, strict=True):
            new = dict(message)
            before = message.get("tool_call_id")
            if call is not None and before != call.id:
                at = f"{location}.tool_call_id"
                new["tool_call_id"] = self._repairs.change(at, "result id", before=before, after=call.id)
            if not is_matched:
                known = self._pairing.name_of(result.given_id) or name_in(result.given_id)
                name = usable_name(result.name, known, self._only_name) if call is None else call.name
                if name != message.get("name") or message.get("tool") not in (None, name):
                    new.pop("tool", None)  # it goes before the name, but vLLM keeps only that
                    at = f"{location}.name"
                    new["name"] = self._repairs.change(at, "result id", before=_named(message), after=name)
            repaired.append(new)
        return repaired


def _is_plain_part(part: object) -> bool:
    """True for a part that the encoder reads: a text, or an image."""
    if not isinstance(part, Mapping):
        return False
    kind = part.get("type")
    return (kind == "text" and isinstance(part.get("text"), str)) or (isinstance(kind, str) and kind in IMAGE_PARTS)


def _named(message: Mapping[str, Any]) -> Any:
    """The name that a result carries."""
    return message.get("tool") or message.get("name")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
