"""Repairs messages and tools so that Kimi's chat templates render the prompt that the model was trained on."""

from collections.abc import Mapping, Sequence
from typing import Any

from constrained_k2.errors import InvalidRequest, excerpt, kind_of_json
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.prompts.pairing import Call, Pairing, Result
from constrained_k2.prompts.special_text import KIMI_SPECIALS, THINK_TAGS, SpecialTexts
from constrained_k2.prompts.text_repairs import PAYLOADS, Repair, TextRepairs, text_of, within
from constrained_k2.request.values import array_at, object_at

ROLES = frozenset({"system", "user", "assistant", "tool"})
_TEXT_FIELDS = frozenset({"name", "reasoning_content", "reasoning"})
_HANDLED_FIELDS = frozenset({"role", "content", "tool_calls", "tool_call_id"})


def repair_messages(body: object, *, specials: SpecialTexts = KIMI_SPECIALS) -> tuple[dict[str, Any], list[Repair]]:
    """Repair the ``messages`` and ``tools`` of a chat-completions request.

    * Call ids become ``functions.NAME:INDEX``, numbered over the dialog, and results refer to their calls
      (:class:`constrained_k2.prompts.pairing.Pairing`). A result without a call gets one inserted before it, with no
      arguments, so that a truncated dialog loses nothing. A call without a result stays as it is.
    * Content that is only text becomes a string: parts are joined without a separator, as Kimi's own templates do.
      None stays only beside tool calls, where every template accepts it.
    * Tools keep what the model is shown: ``type``, ``name``, ``description``, ``parameters``.
    * Special tokens in any text stay text (:mod:`constrained_k2.prompts.special_text`). ``<think>`` and ``</think>``
      in an assistant's content stay as they are: clients send reasoning back in this form.
    * A generation prompt is added, unless the request continues its last message.

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
    changed["messages"] = _Dialog(repairs).messages(given.get("messages"), _only_name(changed.get("tools")))
    if given.get("add_generation_prompt") is False and not given.get("continue_final_message"):
        changed["add_generation_prompt"] = repairs.change("add_generation_prompt", "prompt", before=False, after=True)
    return given | changed if repairs.repairs else given, repairs.repairs


def _only_name(tools: Any) -> str | None:
    names = [tool["function"].get("name") for tool in tools or () if isinstance(tool.get("function"), Mapping)]
    return names[0] if len(names) == 1 and isinstance(names[0], str) else None


class _Dialog:
    def __init__(self, repairs: TextRepairs) -> None:
        self._repairs = repairs
        self._pairing = Pairing()
        self._calls = 0  # their number so far

    def messages(self, messages: object, only_name: str | None) -> list[Any]:
        repaired: list[dict[str, Any]] = []
        results: list[tuple[int, dict[str, Any]]] = []  # consecutive tool messages, paired together
        for number, message in enumerate(array_at("messages", messages)):
            new = self._message(message, f"messages[{number}]")
            if new["role"] == "tool":
                results.append((number, new))
                continue
            repaired += self._paired(results, only_name)
            results = []
            if new["role"] == "assistant" and new.get("tool_calls") is not None:
                new["tool_calls"] = self._numbered(new["tool_calls"], f"messages[{number}].tool_calls")
            repaired.append(new)
        return repaired + self._paired(results, only_name)

    def _message(self, message: object, location: str) -> dict[str, Any]:
        """Repair everything in a message but its ids."""
        new = object_at(location, message)
        role = new.get("role")
        if role == "developer":  # OpenAI's newer name for the system role
            role = new["role"] = self._repairs.change(f"{location}.role", "role", before=role, after="system")
        if not isinstance(role, str) or role not in ROLES:
            remedy = f"Use {', '.join(sorted(ROLES))}"
            raise InvalidRequest(f"unknown role {excerpt(role)}", f"{location}.role", remedy)
        if role != "assistant" and new.get("tool_calls") is not None:
            self._repairs.change(f"{location}.tool_calls", "shape", before=new.pop("tool_calls"), after=None)
        given, at = new.get("content"), f"{location}.content"
        content = text_of(given, role, at, calls=bool(new.get("tool_calls")))
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
        for field, value in new.items():
            if field in _TEXT_FIELDS and not isinstance(value, str | None):  # templates would print its Python form
                raise InvalidRequest(f"must be a string, not {kind_of_json(value)}", f"{location}.{field}")
            if field not in _HANDLED_FIELDS:
                new[field] = self._repairs.clean(value, f"{location}.{field}")
        return new

    def _numbered(self, calls: object, location: str) -> list[dict[str, Any]]:
        made, repaired = [], []
        for number, given in enumerate(array_at(location, calls)):
            here = f"{location}[{number}]"
            call = self._call(given, here)
            name = call["function"]["name"]
            given_id = call.get("id")
            try:
                canonical = KIMI_K2.call_id(name, self._calls)
            except InvalidRequest as error:
                raise InvalidRequest(error.problem, f"{here}.function.name", error.remedy) from error
            self._calls += 1
            if given_id != canonical:
                call["id"] = self._repairs.change(f"{here}.id", "call id", before=given_id, after=canonical)
            made.append(Call(_text(given_id), name, canonical))
            repaired.append(call)
        if made:
            self._pairing.add_turn(made)
        return repaired

    def _call(self, given: object, location: str) -> dict[str, Any]:
        """Return a call in OpenAI's form with its arguments repaired."""
        call = object_at(location, given)
        inner = f"{location}.function"
        if call.get("function") is None and "name" in call:
            call["function"] = {key: call.pop(key) for key in ("name", "arguments") if key in call}
            self._repairs.change(location, "shape", before=given, after=dict(call))
        call["function"] = function = object_at(inner, call.get("function"))
        name = function.get("name")
        if not name and isinstance(call.get("id"), str):
            name = self._repairs.change(f"{inner}.name", "shape", before=name, after=_name_in(call["id"]))
            function["name"] = name
        if not isinstance(name, str):
            raise InvalidRequest("must be a string", f"{inner}.name", "Name the function that was called")
        arguments = function.get("arguments")
        if arguments is None or arguments == "":
            function["arguments"] = self._repairs.change(f"{inner}.arguments", "shape", before=arguments, after="{}")
        elif isinstance(arguments, str | Mapping):
            function["arguments"] = self._repairs.clean(arguments, f"{inner}.arguments")
        else:
            problem = f"must be a JSON object or its text, not {kind_of_json(arguments)}"
            raise InvalidRequest(problem, f"{inner}.arguments")
        return call

    def _paired(self, results: Sequence[tuple[int, dict[str, Any]]], only_name: str | None) -> list[dict[str, Any]]:
        """Give tool messages the ids of their calls; insert a call before each that has none."""
        repaired: list[dict[str, Any]] = []
        given = [Result(_text(message.get("tool_call_id")), _text(message.get("name"))) for _, message in results]
        for (number, message), result, found in zip(results, given, self._pairing.pair(given), strict=True):
            location, call = f"messages[{number}]", found
            if call is None:
                name = _function_name(result, only_name)
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


def _function_name(result: Result, only_name: str | None) -> str:
    """Name the function of a result without a call: by its ``name``, its id, or as the only one declared."""
    for candidate in (result.name, result.given_id and _name_in(result.given_id), only_name):
        if candidate and not KIMI_K2.name_problem(candidate):
            return candidate
    return "unknown"


def _name_in(call_id: str) -> str | None:
    """Return the function's name in ``functions.NAME:INDEX`` or ``NAME:INDEX``."""
    name, colon, index = call_id.rpartition(":")
    return name.removeprefix("functions.") if colon and index.isdecimal() else None


def _tool(tool: object, location: str, repairs: TextRepairs) -> Any:
    """Reduce a tool, in the form of chat completions or of responses, to what the model is shown."""
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
    new = _only(repairs, new, {"type", "function"}, location)
    new["function"] = _only(repairs, function, {"name", "description", "parameters"}, inner)
    new = repairs.clean(new, location)
    if "parameters" in new["function"]:
        new["function"]["parameters"] = _clean_names(new["function"]["parameters"], f"{inner}.parameters", repairs)
    return new


def _clean_names(schema: Any, location: str, repairs: TextRepairs) -> Any:
    """Change types and names of definitions that become a special token between angle brackets.

    In TypeScript an array of ``{"$ref": "#/$defs/think"}`` is ``Array<think>``. Other texts stand in quotes, in
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
