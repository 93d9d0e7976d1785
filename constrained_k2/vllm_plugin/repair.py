"""Chat requests mended before vLLM renders their prompt.

vLLM calls a tool parser's ``adjust_request`` only once the prompt is made, and a ``--middleware`` sees bytes of every
endpoint. In between lies ``OnlineRenderer.preprocess_chat``, through which chat completions, responses, Anthropic's
messages, the render endpoint and ``/tokenize`` all hand their messages and tools to the template: that is wrapped, for
servers with our tool parser alone, so that ``/tokenize`` shows the prompt that a chat gets.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from logging import DEBUG
from typing import Any

from pydantic import ValidationError
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMValidationError
from vllm.parser.utils import count_chat_history_tool_calls
from vllm.renderers.hf import resolve_chat_template

from constrained_k2.errors import ConstrainedK2Error, InvalidRequest
from constrained_k2.rendering import Repair, repair_messages
from constrained_k2.rendering.special_text import SpecialTexts
from constrained_k2.vllm_plugin.exact_arguments import takes_text
from constrained_k2.vllm_plugin.log import logger
from constrained_k2.vllm_plugin.refusals import refusals_noted
from constrained_k2.vllm_plugin.served_vocabulary import vocabulary_of
from constrained_k2.vllm_plugin.settings import REPAIR_KEY, Server, read_switch

_FORMS = {"content": "Send text parts", "tool_calls": "Send calls in OpenAI's form, with arguments as text"}

history_calls: ContextVar[int | None] = ContextVar("history_calls", default=None)
"""The number of calls in the messages that the template is given: the index of the first call to come. None outside."""


def is_asked_for(request: Any) -> bool:
    """Whether a request is to be mended: by its ``vllm_xargs``, else by what the operator has set.

    Raises:
        InvalidRequest: The switch is neither 'on' nor 'off'.
    """
    switch = (getattr(request, "vllm_xargs", None) or {}).get(REPAIR_KEY)
    return Server.settings.repair if switch is None else read_switch(switch, REPAIR_KEY)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is known of a chat once it is mended.

    Attributes:
        calls: The number of calls in its messages.
        exact_arguments: Whether their arguments are to reach the template as text.
    """

    calls: int
    exact_arguments: bool


def template_of(given: Mapping[str, Any], tokenizer: Any, model_config: Any) -> str | None:
    """The text of the chat template that vLLM will use; None if there is none.

    Args:
        given: The arguments of ``preprocess_chat`` by name.
        tokenizer: vLLM's.
        model_config: vLLM's.
    """
    asked_for = getattr(given["request"], "chat_template", None) or given["default_template"]
    template: str | None = resolve_chat_template(
        tokenizer, asked_for, given.get("tool_dicts"), model_config=model_config
    )
    return template


def prepare(given: dict[str, Any], specials: SpecialTexts, template: str | None) -> Prepared:
    """Mend what ``preprocess_chat`` was called with, in place.

    A chat that would go without a generation prompt gets one. Where all content is text, and the operator has not said
    otherwise, the template is given strings: vLLM would give some templates lists of parts, and not all print them.

    Args:
        given: Its arguments by name. The messages and tools in them are replaced, not changed, save that what is lazy
            in a message is read, in place, as vLLM does elsewhere.
        specials: The special tokens of the model's tokenizer.
        template: The chat template's text.

    Raises:
        VLLMValidationError: Something has no clear meaning; vLLM answers with HTTP 400.
    """
    try:
        with refusals_noted():
            given["messages"] = [_plain(message, number) for number, message in enumerate(given["messages"])]
            mended = is_asked_for(given["request"])
            exact = mended and takes_text(template)
            if mended:
                if not exact:
                    given["messages"] = [_with_arguments_read(message) for message in given["messages"]]
                _mend(given, specials)
    except ConstrainedK2Error as error:
        raise VLLMValidationError(str(error), parameter=error.place or None) from error
    return Prepared(count_chat_history_tool_calls(given["messages"]), exact)


def _mend(given: dict[str, Any], specials: SpecialTexts) -> None:
    request = given["request"]
    body: dict[str, Any] = {"messages": given["messages"], "tools": given.get("tool_dicts")}
    is_chat = isinstance(request, ChatCompletionRequest)  # what /tokenize is asked for is up to its client
    if is_chat:
        body |= {field: getattr(request, field) for field in ("add_generation_prompt", "continue_final_message")}
    body, repairs = repair_messages(body, specials=specials)
    if is_chat:
        request.add_generation_prompt = body["add_generation_prompt"]
    given["messages"], given["tool_dicts"] = body["messages"], body["tools"]
    text_alone = all(isinstance(message.get("content"), str | None) for message in body["messages"])
    if given["default_template_content_format"] == "auto" and text_alone:
        given["default_template_content_format"] = "string"
    _report(repairs)


def _plain(message: Any, number: int) -> Any:
    """A message without pydantic's lazy iterators, and its reasoning under the name that vLLM reads.

    Raises:
        InvalidRequest: What is lazy in it turns out not to be what it should.
    """
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
                    f"has a part of no known form ({'.'.join(map(str, first['loc']))}: {first['msg']})"[:300],
                    f"messages[{number}].{field}",
                    remedy,
                ) from error
    if message.get("reasoning") is None and "reasoning_content" in message:
        return {**message, "reasoning": message["reasoning_content"]}
    return message


def _with_arguments_read(message: Any) -> Any:
    """A message whose arguments are objects, so that what their escapes spell is mended too. vLLM reads them later."""
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
        arguments = {}  # as vLLM reads what is no JSON
    if not isinstance(arguments, dict):
        arguments = {}
    return {**call, "function": {**function, "arguments": arguments}}


@lru_cache(maxsize=8)
def specials_of(tokenizer: Any) -> SpecialTexts:
    """The special tokens of vLLM's tokenizer."""
    return SpecialTexts(vocabulary_of(tokenizer).special_tokens)


def _report(repairs: Sequence[Repair]) -> None:
    """Say what was changed, in the log for those who look for it; the contents of messages stay out of it."""
    if repairs and logger.isEnabledFor(DEBUG):
        places = "; ".join(f"{repair.place} ({repair.kind})" for repair in repairs[:20])
        logger.debug("constrained_k2: %d repairs: %s", len(repairs), places)
