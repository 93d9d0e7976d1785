"""ASGI middleware: rewrites request bodies so that vLLM accepts them, and refuses some early.

vLLM's models follow OpenAI's types to the letter and refuse, with HTTP 400, what other servers take: a ``tool_choice``
of type ``allowed_tools`` or null, custom tools in chats or with a grammar, and the odd histories of :mod:`.histories`.
A lone surrogate would be an HTTP 500, and a wrong constraint of a completions stream an error after HTTP 200.
``vllm serve --middleware`` is the public way to add it; :func:`constrained_k2.vllm_plugin.start.entry.from_cli_args`
adds :class:`BodyMiddleware` there.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMClientError

from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.request.tools import ONE_STRING
from constrained_k2.vllm_plugin.api_server.admission import check_params, refuse_beam_search
from constrained_k2.vllm_plugin.api_server.histories import accepted
from constrained_k2.vllm_plugin.api_server.request_hook import in_thread
from constrained_k2.vllm_plugin.api_server.surrogates import refuse_surrogates
from constrained_k2.vllm_plugin.shared.flags import XARGS_KEY
from constrained_k2.vllm_plugin.shared.settings import ALLOWED_TOOLS_KEY, OFF, TEXT_FORMATS_KEY

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

Endpoint = tuple[Any, str | None]
_ENDPOINTS: Mapping[str, Endpoint] = {
    "/chat/completions": (ChatCompletionRequest, "messages"),
    "/responses": (ResponsesRequest, "input"),
    "/completions": (CompletionRequest, "prompt"),
    "/messages": (AnthropicMessagesRequest, None),
}
"""Suffix of an endpoint's path -> (vLLM's request model, the field that holds the input).

The first suffix that matches is used, so ``/chat/completions`` comes before ``/completions``. If the field is
None, bodies are not rewritten, and only lone surrogates are refused.
"""

_ANY_ENDPOINT = "/invocations"
"""The end of the path of SageMaker's endpoint: it takes the bodies of chats and of completions."""


class _Refused(HTTPException):
    """HTTP 400, raised while the body is read."""

    def __init__(self, error: Exception) -> None:
        super().__init__(400, str(error))


class BodyMiddleware:
    """ASGI middleware for the endpoints whose bodies are rewritten.

    It reads a body when the endpoint does, so that a request that vLLM refuses by its headers costs nothing here.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Callable[..., Any]) -> None:
        """Serve one connection."""
        if scope["type"] == "http" and scope["method"] == "POST":
            path = scope["path"].removesuffix("/render")
            found = next((endpoint for end, endpoint in _ENDPOINTS.items() if path.endswith(end)), None)
            if found is not None or path.endswith(_ANY_ENDPOINT):
                receive = _whole_body(scope, receive, found)
        try:
            await self._app(scope, receive, send)
        except _Refused as error:  # another middleware has read the body: vLLM's handlers of exceptions are behind it
            content = {"message": error.detail, "type": "BadRequestError", "param": None, "code": error.status_code}
            await JSONResponse({"error": content}, error.status_code)(scope, receive, send)


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


def _whole_body(scope: Message, receive: Receive, endpoint: Endpoint | None) -> Receive:
    """The messages of a connection, with the whole body in one; ``endpoint`` None: the body's fields tell it."""
    is_read = False

    async def received() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        given = await Request(scope, receive).body()  # raises ClientDisconnect, as vLLM's own reading does
        is_read = True
        return {"type": "http.request", "body": await _checked(given, endpoint), "more_body": False}

    return received


async def _checked(given: bytes, endpoint: Endpoint | None) -> bytes:
    """The body that vLLM reads in place of this one; raises :class:`_Refused`."""
    body = None
    with suppress(ValueError, RecursionError):  # vLLM refuses it
        body = json.loads(given)
    model, input_field = endpoint or _endpoint_of(body)
    try:
        refuse_surrogates(given, model)
        if input_field == "prompt" and isinstance(body, dict) and isinstance(body.get("vllm_xargs"), dict):
            await in_thread(check_completion, body)
    except (ConstrainedK2Error, ValueError) as error:
        raise _Refused(error) from error
    try:
        new = body if input_field is None else rewritten(body, input_field)
        return given if new == body else json.dumps(new).encode()
    except (ValueError, RecursionError):
        return given


def _endpoint_of(body: Any) -> Endpoint:
    """The endpoint of a body that ``/invocations`` takes: a chat's, or that of a completion."""
    is_chat = isinstance(body, dict) and "messages" in body
    return _ENDPOINTS["/chat/completions" if is_chat else "/completions"]


def check_completion(body: dict[str, Any]) -> None:
    """Refuse a constraint, by a ValueError, that vLLM would refuse only after the headers of a stream: HTTP 200."""
    try:
        request = CompletionRequest.model_validate(body)
        params = request.to_sampling_params(1)
    except (ValueError, TypeError, VLLMClientError):
        return  # for vLLM to refuse
    if request.use_beam_search:
        refuse_beam_search(request.vllm_xargs)
    else:
        check_params(params, first=True)
