"""Repairs chat requests before vLLM renders their prompt.

``/tokenize`` renders through the same function of vLLM, so it shows the prompt that a chat gets.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from logging import DEBUG
from typing import Any

from pydantic import ValidationError
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMValidationError
from vllm.parser.utils import count_chat_history_tool_calls
from vllm.renderers.hf import resolve_chat_template

from constrained_k2.errors import ConstrainedK2Error, InvalidRequest
from constrained_k2.prompts import repair_messages
from constrained_k2.prompts.forms import UNKNOWN
from constrained_k2.prompts.special_text import SpecialTexts
from constrained_k2.prompts.text_repairs import Repair
from constrained_k2.prompts.xtml import repair_history
from constrained_k2.vllm_plugin.api_server.functions import field_of, set_fields
from constrained_k2.vllm_plugin.api_server.refusals import refusal, refusals_noted
from constrained_k2.vllm_plugin.api_server.request_state import RequestState
from constrained_k2.vllm_plugin.shared.log import logger
from constrained_k2.vllm_plugin.shared.server import Server, vocabulary_of
from constrained_k2.vllm_plugin.shared.settings import REPAIR_KEY, read_switch

_GENERATION = ("add_generation_prompt", "continue_final_message")
_FORMS = {"content": "Send text parts", "tool_calls": "Send calls in OpenAI's form, with arguments as text"}


def template_of(given: Mapping[str, Any], tokenizer: Any, model_config: Any) -> str | None:
    """The text of the chat template that vLLM will use for these arguments of ``preprocess_chat``, if there is one."""
    asked_for = field_of(given["request"], "chat_template") or given["default_template"]
    tools = given.get("tool_dicts")
    template: str | None = resolve_chat_template(tokenizer, asked_for, tools, model_config=model_config)
    return template


def _refuse_tools_in(messages: Sequence[Any]) -> None:
    for number, message in enumerate(messages):
        if isinstance(message, Mapping) and message.get("tools"):
            raise refusal("messages[…].tools", f"messages[{number}].tools")


def _refuse_unpaired(messages: Sequence[Any], repaired: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a result without an id, a function's name, or a call before it: vLLM cannot render it either."""
    for number, (given, made) in enumerate(zip(messages, repaired, strict=True)):
        is_named = made.get("tool_call_id") or made.get("name") != UNKNOWN or given.get("name")
        if made["role"] == "tool" and not is_named:
            raise refusal("messages[…].tool_call_id", f"messages[{number}].tool_call_id")


def prepare(given: dict[str, Any], specials: SpecialTexts | None, template: str | None) -> RequestState:
    """Repair what ``preprocess_chat`` was called with, in place.

    A chat that would go without a generation prompt gets one. Where all content is text, and the operator has not said
    otherwise, the template is given strings: vLLM would give some templates lists of parts, and not all print them.
    Messages and tools are replaced, not changed, except that lazy values in them are read, as vLLM does elsewhere.

    Args:
        given: The arguments, by name.
        specials: The tokenizer's; None for Kimi K3, whose prompts are rendered in code, by tags: text stays text.
        template: The text of the chat template, if there is one.
    """
    exact = False
    try:
        with refusals_noted():
            given["messages"] = [_plain(message, number) for number, message in enumerate(given["messages"])]
            if _is_on(given["request"]):
                if specials is None:
                    _repair_for_tags(given)
                else:
                    # Templates that distinguish text from objects write text as it is.
                    exact = "is string" in (template or "")
                    if not exact:
                        given["messages"] = [_with_arguments_read(message) for message in given["messages"]]
                    _repair(given, specials)
    except ConstrainedK2Error as error:
        raise VLLMValidationError(str(error), parameter=error.location or None) from error
    return RequestState(history_calls=count_chat_history_tool_calls(given["messages"]), exact_arguments=exact)


def _repair_for_tags(given: dict[str, Any]) -> None:
    _refuse_tools_in(given["messages"])
    body, repairs = repair_history({"messages": given["messages"], "tools": given.get("tool_dicts")})
    _refuse_unpaired(given["messages"], body["messages"])
    given["messages"], given["tool_dicts"] = [*map(_with_reasoning, body["messages"])], body["tools"]
    set_fields(given["request"], add_generation_prompt=True, continue_final_message=False)
    _log(repairs)


def _repair(given: dict[str, Any], specials: SpecialTexts) -> None:
    request = given["request"]
    body: dict[str, Any] = {"messages": given["messages"], "tools": given.get("tool_dicts")}
    is_chat = isinstance(request, ChatCompletionRequest)  # a client of /tokenize asks for what it likes
    if is_chat:
        body |= {field: getattr(request, field) for field in _GENERATION}
    body, repairs = repair_messages(body, specials=specials)
    set_fields(request, **{field: body[field] for field in _GENERATION if field in body})
    given["messages"], given["tool_dicts"] = [*map(_with_reasoning, body["messages"])], body["tools"]
    text_alone = all(isinstance(message.get("content"), str | None) for message in body["messages"])
    if given["default_template_content_format"] == "auto" and text_alone:
        given["default_template_content_format"] = "string"
    _log(repairs)


def _is_on(request: Any) -> bool:
    xargs = getattr(request, "vllm_xargs", None)  # also of /tokenize, whose requests may have any field
    switch = xargs.get(REPAIR_KEY) if isinstance(xargs, Mapping) else None
    return Server.settings.repair if switch is None else read_switch(switch, REPAIR_KEY)


def _log(repairs: Sequence[Repair]) -> None:
    if repairs and logger.isEnabledFor(DEBUG):  # without the contents of messages
        locations = "; ".join(f"{repair.location} ({repair.kind})" for repair in repairs[:20])
        logger.debug("constrained_k2: %d repairs: %s", len(repairs), locations)


def _plain(message: Any, number: int) -> Any:
    """A message without pydantic's lazy iterators, and with its reasoning for vLLM."""
    if not isinstance(message, dict):
        return message
    for field, remedy in _FORMS.items():
        value = message.get(field)
        if isinstance(value, Iterable) and not isinstance(value, str | list | Mapping):
            try:
                message[field] = list(value)
            except ValueError as error:  # pydantic's own is one
                first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
                raise InvalidRequest(
                    f"has a part of an unknown form ({'.'.join(map(str, first['loc']))}: {first['msg']})"[:300],
                    f"messages[{number}].{field}",
                    remedy,
                ) from error
    return _with_reasoning(message)


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """A message with its reasoning under the name that vLLM reads."""
    if message.get("reasoning") is None and "reasoning_content" in message:
        return {**message, "reasoning": message["reasoning_content"]}
    return message


def _with_arguments_read(message: Any) -> Any:
    """A message whose arguments are objects, so that text in escapes is repaired too. vLLM reads arguments later."""
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        arguments = None  # vLLM reads this, and all that is not an object, as {}
    return {**call, "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}}}


@lru_cache(maxsize=8)
def specials_of(tokenizer: Any) -> SpecialTexts:
    """The special tokens of vLLM's tokenizer."""
    return SpecialTexts(vocabulary_of(tokenizer).special_tokens)


@contextmanager
def restored_arguments(messages: list[Any]) -> Iterator[None]:
    r"""Leave ``{}`` in place of every call's arguments, and put their text back afterwards, as it was written.

    vLLM reads arguments as JSON and its template writes them anew: other blanks than the model's own (so its earlier
    answer is no longer a prefix that the cache knows), ``{}`` for anything but a JSON object, and ``\u005f`` as the
    ``_`` that completes a special token. Kimi's templates take the text as well, and then write it as it is.
    """
    taken: list[tuple[dict[str, Any], str]] = []
    for message in messages:
        calls = message.get("tool_calls") if message["role"] == "assistant" else None
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                taken.append((function, function["arguments"]))
                function["arguments"] = "{}"
    yield
    for function, text in taken:
        function["arguments"] = text
