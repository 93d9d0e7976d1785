"""ASGI middleware: rewrites bodies into the form that vLLM's models accept, and refuses some that would fail late.

vLLM's models follow OpenAI's types to the letter and refuse, with HTTP 400, what other servers take: a ``tool_choice``
of type ``allowed_tools`` or null, custom tools in chats or with a grammar, and the odd histories of :mod:`.histories`.
A lone surrogate would be an HTTP 500, and a wrong constraint of a completions stream an error after HTTP 200.
``vllm serve --middleware`` is the public door for this; :func:`constrained_k2.vllm_plugin.start.entry.from_cli_args`
adds :class:`BodyMiddleware` there.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from fastapi import HTTPException
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from constrained_k2.errors import InvalidRequest
from constrained_k2.request.tools import ONE_STRING
from constrained_k2.vllm_plugin.api_server.admission import check_params, refuse_beam_search
from constrained_k2.vllm_plugin.api_server.histories import accepted
from constrained_k2.vllm_plugin.api_server.surrogates import refuse_surrogates
from constrained_k2.vllm_plugin.shared.flags import XARGS_KEY
from constrained_k2.vllm_plugin.shared.settings import ALLOWED_TOOLS_KEY, OFF, TEXT_FORMATS_KEY

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

_ENDPOINTS: Mapping[str, tuple[Any, str | None]] = {
    "/chat/completions": (ChatCompletionRequest, "messages"),
    "/responses": (ResponsesRequest, "input"),
    "/completions": (CompletionRequest, "prompt"),
    "/messages": (AnthropicMessagesRequest, None),
}
"""Suffix of an endpoint's path -> (vLLM's request model, the field that holds the input).

The first suffix that matches is used, so ``/chat/completions`` comes before ``/completions``. If the field is
None, bodies are not rewritten, and only lone surrogates are refused.
"""


class BodyMiddleware:
    """ASGI middleware for the endpoints whose bodies are rewritten.

    It reads a body when the endpoint does, so that a request that vLLM refuses by its headers costs nothing here.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Callable[..., Any]) -> None:
        """Serve one connection."""
        if scope["type"] == "http" and scope["method"] == "POST":
            path = scope["path"].removesuffix("/render")
            found = next((end for end in _ENDPOINTS if path.endswith(end)), None)
            receive = receive if found is None else _whole_body(receive, *_ENDPOINTS[found])
        await self._app(scope, receive, send)


def rewritten(body: Any, input_field: str) -> Any:
    """A body whose history, tools and ``tool_choice`` vLLM's validators accept; the rest is unchanged.

    ``input_field`` names the endpoint: ``messages`` for chats, ``input`` for responses, ``prompt`` for completions,
    whose bodies are not changed. vLLM ignores the fields of another endpoint, and so does this function.

    A ``tool_choice`` of type ``allowed_tools`` goes into ``vllm_xargs`` as JSON, and its mode becomes the choice: the
    prompt shows all tools, and vLLM knows ``auto`` and ``required``. Null on /v1/responses is the default. The grammars
    of custom tools go into ``vllm_xargs`` too; a chat's custom tool becomes the function that vLLM shows in its place.
    """
    if not isinstance(body, dict) or input_field == "prompt":
        return body
    is_chat = input_field == "messages"
    new = _without_formats(accepted(body, input_field), is_chat=is_chat)
    choice, xargs = new.get("tool_choice", ""), new.get("vllm_xargs") or {}
    if choice is None and not is_chat:
        new = {name: value for name, value in new.items() if name != "tool_choice"}
    elif (
        isinstance(choice, Mapping)
        and choice.get("type") == "allowed_tools"
        and is_chat
        and isinstance(xargs, Mapping)
        and xargs.get(XARGS_KEY) != OFF
    ):
        inner = choice.get("allowed_tools", choice)
        is_required = isinstance(inner, Mapping) and inner.get("mode") == "required"
        given = {**xargs, ALLOWED_TOOLS_KEY: json.dumps(choice)}
        new = {**new, "tool_choice": "required" if is_required else "auto", "vllm_xargs": given}
    return new


def _without_formats(body: dict[str, Any], *, is_chat: bool) -> dict[str, Any]:
    """A body without the grammars of its custom tools, and in chats without custom tools."""
    tools, xargs = body.get("tools"), body.get("vllm_xargs") or {}
    if not isinstance(tools, list) or not isinstance(xargs, Mapping) or xargs.get(XARGS_KEY) == OFF:
        return body
    formats, new = dict[str, Any](), list(tools)
    for number, tool in enumerate(tools):
        custom = tool.get("custom", tool) if isinstance(tool, Mapping) and tool.get("type") == "custom" else None
        if not isinstance(custom, Mapping):
            continue
        form = custom.get("format")
        if isinstance(form, Mapping) and form.get("type") == "grammar":
            formats[str(number)] = form
            new[number] = {name: value for name, value in custom.items() if name != "format"}
        if is_chat:
            function = {name: custom[name] for name in ("name", "description") if name in custom}
            new[number] = {"type": "function", "function": function | {"parameters": json.loads(ONE_STRING)}}
    body = {**body, "tools": new} | (
        {"vllm_xargs": {**xargs, TEXT_FORMATS_KEY: json.dumps(formats)}} if formats else {}
    )
    choice = body.get("tool_choice")
    if is_chat and isinstance(choice, Mapping) and choice.get("type") == "custom":
        body["tool_choice"] = {"type": "function", "function": choice.get("custom", choice)}
    return body


def _whole_body(receive: Receive, model: Any, input_field: str | None) -> Receive:
    """The messages of a connection, with the whole body in one."""
    is_read = False

    async def received() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        parts: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] != "http.request":  # the client is gone
                return message
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                break
        is_read = True
        body = b"".join(parts)
        try:
            refuse_surrogates(body, model)
        except InvalidRequest as error:
            raise HTTPException(400, str(error)) from error
        if input_field is not None:
            body = _rewritten_bytes(body, input_field)
        return {"type": "http.request", "body": body, "more_body": False}

    return received


def _rewritten_bytes(given: bytes, input_field: str) -> bytes:
    try:
        body = json.loads(given)
        new = rewritten(body, input_field)
        written = given if new == body else json.dumps(new).encode()
    except (ValueError, RecursionError):
        return given  # for vLLM to refuse
    if isinstance(body, dict) and input_field == "prompt":
        try:
            check_completion(body)
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
    return written


def check_completion(body: dict[str, Any]) -> None:
    """Refuse a constraint, by a ValueError, that vLLM would refuse only after the headers of a stream: HTTP 200."""
    xargs = body.get("vllm_xargs")
    if not isinstance(xargs, dict):
        return
    if body.get("use_beam_search"):
        refuse_beam_search(xargs)
        return
    try:
        params = CompletionRequest.model_validate(body).to_sampling_params(1)
    except (ValueError, TypeError):
        return  # for vLLM to refuse
    check_params(params, first=True)
