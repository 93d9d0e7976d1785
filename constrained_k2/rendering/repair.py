"""Messages and tools, mended so that Kimi's chat templates make of them the prompt that the model was trained on."""

from collections.abc import Mapping, Sequence
from typing import Any

from constrained_k2.errors import InvalidRequest, kind_of_json
from constrained_k2.format import ToolCallFormat
from constrained_k2.rendering.content import text_of
from constrained_k2.rendering.declarations import mend_tools
from constrained_k2.rendering.mending import Mending, Repair
from constrained_k2.rendering.pairing import Call, Pairing, Result
from constrained_k2.rendering.special_text import KIMI_SPECIALS, THINK_TAGS, SpecialTexts

ROLES = frozenset({"system", "user", "assistant", "tool"})
UNKNOWN_FUNCTION = "unknown"
"""The name under which a result is shown whose call and function nobody knows any more."""

_TEXT_FIELDS = frozenset({"name", "reasoning_content", "reasoning"})
_MENDED_APART = frozenset({"role", "content", "tool_calls", "tool_call_id"})


def repair_messages(body: object, *, specials: SpecialTexts = KIMI_SPECIALS) -> tuple[dict[str, Any], list[Repair]]:
    """Mend the ``messages`` and ``tools`` of a chat-completions request.

    * Ids become ``functions.NAME:INDEX``, numbered over the dialog, and results follow their calls
      (:class:`constrained_k2.rendering.pairing.Pairing`). Before a result that has no call, that call is inserted, with
      no arguments: a truncated dialog loses nothing. A call without a result stays as it is: no answer is invented.
    * Content is text wherever it is text alone: parts are joined as Kimi's own templates join them, with nothing
      between. None stays only beside tool calls, where every template takes it.
    * Tools keep what the model is shown: ``type``, ``name``, ``description``, ``parameters``.
    * Special tokens in any text stay text (:mod:`constrained_k2.rendering.special_text`). ``<think>`` and ``</think>``
      in an assistant's content are left: clients send reasoning back so.
    * A generation prompt is asked for, unless the request continues its last message.

    ``body`` is never changed; where nothing needs mending, the values are its own. Mending twice changes nothing more.

    Args:
        body: The decoded body.
        specials: The special tokens of the tokenizer.

    Returns:
        The mended body and what was changed, in order.

    Raises:
        InvalidRequest: Something has no clear meaning; ``place`` names the message or the tool.
    """
    if not isinstance(body, Mapping):
        raise InvalidRequest(f"the request must be a JSON object, not {kind_of_json(body)}", "body")
    mending = Mending(specials)
    changed: dict[str, Any] = {}
    tools = body.get("tools")
    if tools is not None:
        changed["tools"] = mend_tools(tools, mending)
    changed["messages"] = _Dialog(mending).messages(body.get("messages"), _only_name(changed.get("tools")))
    if body.get("add_generation_prompt") is False and not body.get("continue_final_message"):
        mending.note("add_generation_prompt", "prompt", before=False, after=True)
        changed["add_generation_prompt"] = True
    return {**body, **changed} if mending.repairs else dict(body), mending.repairs


def _only_name(tools: Any) -> str | None:
    """The name of the only declared tool."""
    names = [tool["function"].get("name") for tool in tools or () if isinstance(tool.get("function"), Mapping)]
    return names[0] if len(names) == 1 and isinstance(names[0], str) else None


class _Dialog:
    """Messages while they are mended: the calls so far, and their number."""

    def __init__(self, mending: Mending) -> None:
        self._mending = mending
        self._pairing = Pairing()
        self._calls = 0

    def messages(self, messages: object, only_name: str | None) -> list[Any]:
        if not isinstance(messages, list | tuple):
            raise InvalidRequest(f"must be an array, not {kind_of_json(messages)}", "messages", "Send a list")
        mended: list[dict[str, Any]] = []
        results: list[tuple[int, dict[str, Any]]] = []  # consecutive tool messages, paired together
        for number, message in enumerate(messages):
            new = self._message(message, f"messages[{number}]")
            if new["role"] == "tool":
                results.append((number, new))
                continue
            mended += self._paired(results, only_name)
            results = []
            if new["role"] == "assistant" and new.get("tool_calls") is not None:
                new["tool_calls"] = self._numbered(new["tool_calls"], f"messages[{number}].tool_calls")
            mended.append(new)
        return mended + self._paired(results, only_name)

    def _message(self, message: object, place: str) -> dict[str, Any]:
        """A message with its texts mended; its ids are not looked at yet."""
        if not isinstance(message, Mapping):
            raise InvalidRequest(f"must be an object, not {kind_of_json(message)}", place)
        new = dict(message)
        role = new.get("role")
        if role == "developer":  # OpenAI's newer name of the same thing
            self._mending.note(f"{place}.role", "role", before="developer", after="system")
            role = new["role"] = "system"
        if not isinstance(role, str) or role not in ROLES:
            raise InvalidRequest(
                f"the role {str(role)[:40]!r} is not known", f"{place}.role", f"Use {', '.join(sorted(ROLES))}"
            )
        if role != "assistant" and new.get("tool_calls") is not None:
            self._mending.note(f"{place}.tool_calls", "shape", before=new.pop("tool_calls"), after=None)
        given = new.get("content")
        content = text_of(given, role, f"{place}.content", calls=bool(new.get("tool_calls")))
        if content != given or type(content) is not type(given):
            self._mending.note(f"{place}.content", "content", before=given, after=content)
        keep = THINK_TAGS if role == "assistant" else frozenset[str]()
        if content is not None or "content" in new:
            clean = self._mending.clean_parts if isinstance(content, list) else self._mending.clean
            new["content"] = clean(content, f"{place}.content", keep)
        for field, value in new.items():
            if field in _TEXT_FIELDS and not isinstance(value, str | None):  # templates would print its Python form
                raise InvalidRequest(f"must be a string, not {kind_of_json(value)}", f"{place}.{field}")
            if field not in _MENDED_APART:
                new[field] = self._mending.clean(value, f"{place}.{field}")
        return new

    def _numbered(self, calls: object, place: str) -> list[dict[str, Any]]:
        """The calls of an assistant message under their canonical ids."""
        if not isinstance(calls, list | tuple):
            raise InvalidRequest(f"must be an array, not {kind_of_json(calls)}", place)
        made, mended = [], []
        for number, given in enumerate(calls):
            here = f"{place}[{number}]"
            call = self._call(given, here)
            name = call["function"]["name"]
            given_id = call.get("id")
            try:
                canonical = ToolCallFormat.call_id(name, self._calls)
            except InvalidRequest as error:
                raise InvalidRequest(error.problem, f"{here}.function.name", error.remedy) from error
            self._calls += 1
            if given_id != canonical:
                self._mending.note(f"{here}.id", "call id", before=given_id, after=canonical)
                call["id"] = canonical
            made.append(Call(given_id if isinstance(given_id, str) and given_id else None, name, canonical))
            mended.append(call)
        if made:
            self._pairing.add_turn(made)
        return mended

    def _call(self, given: object, place: str) -> dict[str, Any]:
        """A call in OpenAI's form, its arguments mended."""
        if not isinstance(given, Mapping):
            raise InvalidRequest(f"must be an object, not {kind_of_json(given)}", place)
        call = dict(given)
        function = call.get("function")
        if function is None and "name" in call:
            function = {key: call.pop(key) for key in ("name", "arguments") if key in call}
            self._mending.note(place, "shape", before=given, after={**call, "function": function})
        if not isinstance(function, Mapping):
            raise InvalidRequest(f"must be an object, not {kind_of_json(function)}", f"{place}.function")
        function = dict(function)
        call["function"] = function
        name = function.get("name")
        if not name and isinstance(call.get("id"), str):
            function["name"] = _name_in(call["id"])
            self._mending.note(f"{place}.function.name", "shape", before=name, after=function["name"])
        if not isinstance(function.get("name"), str):
            raise InvalidRequest("must be a string", f"{place}.function.name", "Say which function was called")
        arguments = function.get("arguments")
        if arguments is None or arguments == "":
            function["arguments"] = "{}"
            self._mending.note(f"{place}.function.arguments", "shape", before=arguments, after="{}")
        elif isinstance(arguments, str | Mapping):
            function["arguments"] = self._mending.clean(arguments, f"{place}.function.arguments")
        else:
            raise InvalidRequest(
                f"must be a JSON object or its text, not {kind_of_json(arguments)}", f"{place}.function.arguments"
            )
        return call

    def _paired(self, results: Sequence[tuple[int, dict[str, Any]]], only_name: str | None) -> list[dict[str, Any]]:
        """Tool messages under the ids of their calls; a call is inserted before each that has none."""
        mended: list[dict[str, Any]] = []
        given = [(_text(message.get("tool_call_id")), _text(message.get("name"))) for _, message in results]
        for (number, message), (given_id, name), call in zip(
            results, given, self._pairing.pair([Result(*each) for each in given]), strict=True
        ):
            place = f"messages[{number}]"
            if call is None:
                function = {"name": _function_of(name, given_id, only_name), "arguments": "{}"}
                call_id = ToolCallFormat.call_id(function["name"], self._calls)
                self._calls += 1
                made = {"id": call_id, "type": "function", "function": function}
                turn = {"role": "assistant", "content": "", "tool_calls": [made]}
                self._pairing.add_turn([Call(given_id, function["name"], call_id, answered=True)])
                self._mending.note(place, "call inserted", before=None, after=turn)
                mended.append(turn)
            else:
                call_id = call.id
            before = message.get("tool_call_id")
            if before != call_id:
                self._mending.note(f"{place}.tool_call_id", "result id", before=before, after=call_id)
            mended.append({**message, "tool_call_id": call_id})
        return mended


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _function_of(name: str | None, given_id: str | None, only_name: str | None) -> str:
    """The function behind a result without a call: by its ``name``, its id, or as the only one declared."""
    for candidate in (name, given_id and _name_in(given_id), only_name):
        if candidate and not ToolCallFormat.name_problem(candidate):
            return candidate
    return UNKNOWN_FUNCTION


def _name_in(call_id: str) -> str | None:
    """The function's name in ``functions.NAME:INDEX`` or ``NAME:INDEX``."""
    name, colon, index = call_id.rpartition(":")
    return name.removeprefix("functions.") if colon and index.isdecimal() else None
