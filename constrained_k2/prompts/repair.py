"""Repairs messages and tools so that Kimi's chat templates render prompts as in the model's training."""

from collections.abc import Mapping, Sequence
from typing import Any

from constrained_k2.errors import InvalidRequest, kind_of_json
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.prompts.content import PAYLOADS, text_of
from constrained_k2.prompts.forms import IPYTHON, call_form, message_form, name_in, usable_name
from constrained_k2.prompts.pairing import Call, Pairing, Result
from constrained_k2.prompts.special_text import KIMI_SPECIALS, THINK_TAGS, SpecialTexts
from constrained_k2.prompts.text_repairs import Repair, TextRepairs, within
from constrained_k2.request.tools import declared_schema
from constrained_k2.request.values import array_at, object_at

_HANDLED_FIELDS = frozenset({"role", "content", "tool_calls", "tool_call_id"})


def repair_messages(body: object, *, specials: SpecialTexts = KIMI_SPECIALS) -> tuple[dict[str, Any], list[Repair]]:
    """Repair the ``messages`` and ``tools`` of a chat-completions request.

    * Call ids become ``functions.NAME:INDEX``, numbered over the dialog, and results refer to their calls
      (:class:`constrained_k2.prompts.pairing.Pairing`). A result without a call gets one inserted before it, with no
      arguments, so that a truncated dialog loses nothing. A call without a result stays as it is.
    * Messages of older and other APIs are rewritten (:mod:`constrained_k2.prompts.forms`).
    * Content that is only text becomes a string (:func:`constrained_k2.prompts.content.text_of`). None stays only
      beside tool calls, where every template accepts it.
    * Tools keep the fields that the model is shown: ``type``, ``name``, ``description`` and ``parameters``, which
      Anthropic calls ``input_schema``, and MCP ``inputSchema``.
    * Special tokens in any text stay text (:mod:`constrained_k2.prompts.special_text`). ``<think>`` and ``</think>``
      in an assistant's content stay as they are: clients send reasoning back in this form.
    * A generation prompt is added, unless the request continues its last message: it says so itself, or that message
      is an assistant's with Moonshot's ``"partial": true``.

    ``body`` is never changed; the result, returned with the changes in order, shares the values that need no repair.
    Repairing a result changes nothing.

    Raises:
        InvalidRequest: A value has no clear meaning; ``location`` names the message or the tool.
    """
    given = object_at("body", body)
    repairs = TextRepairs(specials)
    changed: dict[str, Any] = {}
    if (tools := given.get("tools")) is not None:
        entries = enumerate(array_at("tools", tools))
        changed["tools"] = [_tool(tool, f"tools[{number}]", repairs) for number, tool in entries]
    changed["messages"] = _Dialog(repairs, _only_name(changed.get("tools"))).messages(given.get("messages"))
    changed |= _ending(given, changed["messages"][-1:], repairs)
    return given | changed if repairs.repairs else given, repairs.repairs


def _ending(given: Mapping[str, Any], last: Sequence[dict[str, Any]], repairs: TextRepairs) -> dict[str, Any]:
    """The fields by which the prompt ends with a generation prompt or continues the last message, without its calls."""
    answers = [message for message in last if message["role"] == "assistant"]
    if given.get("continue_final_message"):
        for message in answers:
            if message.get("tool_calls") and message.get("content") is not None:
                location = f"messages[{len(given['messages']) - 1}].tool_calls"
                repairs.change(location, "shape", before=message.pop("tool_calls"), after=None)
    elif any(message.get("partial") is True and not message.get("tool_calls") for message in answers):
        repairs.change("continue_final_message", "prompt", before=None, after=True)
        return {"continue_final_message": True, "add_generation_prompt": False}
    elif given.get("add_generation_prompt") is False:
        return {"add_generation_prompt": repairs.change("add_generation_prompt", "prompt", before=False, after=True)}
    return {}


def _only_name(tools: Any) -> str | None:
    names = [tool["function"].get("name") for tool in tools or () if isinstance(tool.get("function"), Mapping)]
    return names[0] if len(names) == 1 and isinstance(names[0], str) else None


class _Dialog:
    def __init__(self, repairs: TextRepairs, only_name: str | None) -> None:
        self._repairs = repairs
        self._only_name = only_name  # name of the only declared tool
        self._pairing = Pairing()
        self._calls = 0  # number of calls so far

    def messages(self, messages: object) -> list[Any]:
        repaired: list[dict[str, Any]] = []
        results: list[tuple[int, dict[str, Any]]] = []  # consecutive tool messages, paired together
        for number, message in enumerate(array_at("messages", messages)):
            new = self._message(message, f"messages[{number}]")
            if new["role"] in {"tool", IPYTHON}:
                results.append((number, new))
                continue
            repaired += self._paired(results)
            results = []
            if new["role"] == "assistant" and new.get("tool_calls") is not None:
                new["tool_calls"] = self._numbered(new["tool_calls"], f"messages[{number}].tool_calls")
            repaired.append(new)
        return repaired + self._paired(results)

    def _message(self, message: object, location: str) -> dict[str, Any]:
        """Repair everything in a message but its ids."""
        new = message_form(message, location, self._repairs)
        role: str = new["role"]
        given, at = new.get("content"), f"{location}.content"
        content = text_of(given, role, at, calls=bool(new.get("tool_calls")))
        refusal = new.get("refusal")
        if role == "assistant" and refusal and isinstance(refusal, str) and not content:
            content = refusal
        if content != given or type(content) is not type(given):
            self._repairs.change(at, "content", before=given, after=content)
        keep = THINK_TAGS if role == "assistant" else frozenset[str]()
        if isinstance(content, list):
            new["content"] = [
                {
                    key: value if key in PAYLOADS else self._repairs.clean(value, f"{at}[{number}].{key}", keep)
                    for key, value in part.items()
                }
                for number, part in enumerate(content)
            ]
        elif content is not None or "content" in new:
            new["content"] = self._repairs.clean(content, at, keep)
        if not isinstance(name := new.get("name"), str | None):  # templates would print its Python form
            raise InvalidRequest(f"must be a string, not {kind_of_json(name)}", f"{location}.name")
        for field, value in new.items():
            if field not in _HANDLED_FIELDS:
                new[field] = self._repairs.clean(value, f"{location}.{field}")
        return new

    def _numbered(self, calls: object, location: str) -> list[dict[str, Any]]:
        made, repaired = [], []
        for number, given in enumerate(array_at(location, calls)):
            here = f"{location}[{number}]"
            call = call_form(given, here, self._only_name, self._repairs)
            name = call["function"]["name"]
            given_id = call.get("id")
            canonical = KIMI_K2.call_id(name, self._calls)
            self._calls += 1
            if given_id != canonical:
                call["id"] = self._repairs.change(f"{here}.id", "call id", before=given_id, after=canonical)
            made.append(Call(_text(given_id), name, canonical))
            repaired.append(call)
        if made:
            self._pairing.add_turn(made)
        return repaired

    def _paired(self, results: Sequence[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
        """Give tool messages the ids of their calls; insert a call before each message that has none.

        A message of the role ``ipython`` becomes the result of an open call; if there is none, it stays as it is.
        """
        repaired: list[dict[str, Any]] = []
        given = [Result(_text(message.get("tool_call_id")), _text(message.get("name"))) for _, message in results]
        for (number, message), result, found in zip(results, given, self._pairing.pair(given), strict=True):
            location, call = f"messages[{number}]", found
            if call is None and message["role"] == IPYTHON:
                repaired.append(message)
                continue
            if message["role"] == IPYTHON:
                message["role"] = self._repairs.change(f"{location}.role", "role", before=IPYTHON, after="tool")
            if call is None:
                known = self._pairing.name_of(result.given_id) or name_in(result.given_id)
                name = usable_name(result.name, known, self._only_name)
                call = Call(result.given_id, name, KIMI_K2.call_id(name, self._calls), answered=True)
                self._calls += 1
                made = {"id": call.id, "type": "function", "function": {"name": name, "arguments": "{}"}}
                turn = {"role": "assistant", "content": "", "tool_calls": [made]}
                self._pairing.add_turn([call])
                repaired.append(self._repairs.change(location, "call inserted", before=None, after=turn))
            before = message.get("tool_call_id")
            if before != call.id:
                self._repairs.change(f"{location}.tool_call_id", "result id", before=before, after=call.id)
            repaired.append({**message, "tool_call_id": call.id})
        return repaired


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _tool(tool: object, location: str, repairs: TextRepairs) -> Any:
    """Reduce a tool, as chat completions or the responses API write it, to the fields that the model is shown."""
    new = object_at(location, tool)
    if "function" not in new and "name" in new:  # the responses endpoint has no inner object
        new = {"type": "function", "function": {key: value for key, value in new.items() if key != "type"}}
        repairs.change(location, "shape", before=None, after="function")
    if new.get("type", "function") != "function":
        return repairs.clean(new, location)
    inner = f"{location}.function"
    function = object_at(inner, new.get("function"))
    if "type" not in new:
        repairs.change(f"{location}.type", "tool", before=None, after="function")
        new = {"type": "function", **new}
    schema, field = declared_schema({**new, "function": function})
    if field != "parameters":
        repairs.change(f"{inner}.parameters", "tool", before=None, after=schema)
        function = {**function, "parameters": schema}
    new = _only(repairs, new, {"type", "function"}, location)
    new["function"] = _only(repairs, function, {"name", "description", "parameters"}, inner)
    new = repairs.clean(new, location)
    if "parameters" in new["function"]:
        new["function"]["parameters"] = _clean_names(new["function"]["parameters"], f"{inner}.parameters", repairs)
    return new


def _clean_names(schema: Any, location: str, repairs: TextRepairs) -> Any:
    """Change types and names of definitions that become a special token between angle brackets.

    In TypeScript an array of ``{"$ref": "#/$defs/think"}`` is ``Array<think>``. Other texts are written in quotes, in
    comments or after a blank.
    """
    if isinstance(schema, list):
        return [_clean_names(item, within(location, f"[{number}]"), repairs) for number, item in enumerate(schema)]
    if not isinstance(schema, dict):
        return schema
    new: dict[str, Any] = {}
    for key, value in schema.items():
        here = within(location, f".{key}")
        if key == "type" and isinstance(value, str):
            new[key] = repairs.clean_bracketed(value, here)
        elif key == "$ref" and isinstance(value, str):
            *path, name = value.split("/")
            new[key] = "/".join([*path, repairs.clean_bracketed(name, here)])
        elif key == "$defs" and isinstance(value, dict):
            new[key] = {
                repairs.clean_bracketed(name, f"{here} key"): _clean_names(item, within(here, f".{name}"), repairs)
                for name, item in value.items()
            }
        else:
            new[key] = _clean_names(value, here, repairs)
    return new


def _only(repairs: TextRepairs, value: Mapping[str, Any], keys: set[str], location: str) -> dict[str, Any]:
    """Drop null values and keys that are not part of a prompt."""
    for key, item in value.items():
        if key not in keys or item is None:
            repairs.change(f"{location}.{key}", "tool", before=item, after=None)
    return {key: item for key, item in value.items() if key in keys and item is not None}
