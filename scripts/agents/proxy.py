"""A recording reverse proxy on loopback between an agent and the server; it ends with its ``with`` block."""

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any, Self, TypeAlias

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from scripts.agents.observation import (
    GENERATING,
    Exchange,
    calls_in_history,
    observe_event,
    reason_of,
    tools_of,
)

_METHODS = ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS"]
_HOP = {"host", "content-length", "connection", "transfer-encoding", "accept-encoding", "content-encoding"}
_TIMEOUT = 600  # seconds; the prompts of agents are long and the server has one thread

# (request, index of its first call) -> the fields to add to it
Script: TypeAlias = Callable[[Mapping[str, Any], int], dict[str, Any]]


class RecordingProxy:
    """Passes every request on as it is, with the added fields that dictate the model's answer.

    ``exchanges`` holds what was seen since the last :meth:`start_run`.
    """

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._script: Script = lambda _body, _index: {}
        self.exchanges: list[Exchange] = []
        application = Starlette(routes=[Route("/{path:path}", self._pass_on, methods=_METHODS)])
        config = uvicorn.Config(application, host="127.0.0.1", port=0, log_level="error", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self.url = ""  # without /v1; known inside the block

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError("the recording proxy did not start: see the error above")
            threading.Event().wait(0.02)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)

    def start_run(self, script: Script) -> list[Exchange]:
        """Forget what was seen; answer the next requests by ``script``. Returns the list that the run fills."""
        self._script = script
        self.exchanges = []
        return self.exchanges

    async def _pass_on(self, request: Request) -> Response:
        exchange = Exchange(request.url.path.rstrip("/") or "/")
        self.exchanges.append(exchange)
        content = self._observe_request(exchange, await request.body())
        headers = {name: value for name, value in request.headers.items() if name not in _HOP}
        client = httpx.AsyncClient(timeout=_TIMEOUT)
        url = f"{self._server_url}{request.url.path}" + (f"?{request.url.query}" if request.url.query else "")
        outgoing = client.build_request(request.method, url, headers=headers, content=content)
        waiting = asyncio.create_task(client.send(outgoing, stream=True))
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=0.1)
                if not waiting.done() and await request.is_disconnected():
                    exchange.ended = "cut"
                    return Response(status_code=499)
            answer = waiting.result()
        except httpx.HTTPError as error:
            exchange.status, exchange.reason, exchange.ended = 502, repr(error)[:200], "whole"
            return Response(status_code=502)
        finally:
            if not waiting.done() or waiting.exception() is not None:
                waiting.cancel()
                await client.aclose()
        exchange.status = answer.status_code
        if exchange.status >= 400 and exchange.path in GENERATING:
            exchange.refused_by = await self._refused_by(url, headers, content)
        kept = {name: value for name, value in answer.headers.items() if name not in _HOP}
        return StreamingResponse(self._stream(exchange, client, answer), answer.status_code, kept)

    def _observe_request(self, exchange: Exchange, content: bytes) -> bytes:
        exchange.digest = hashlib.sha256(content).hexdigest()
        body: Any = None
        with suppress(ValueError):
            body = json.loads(content) if content else None
        if not isinstance(body, dict):
            return content
        exchange.is_streamed, exchange.tools = body.get("stream") is True, len(tools_of(body))
        if exchange.path not in GENERATING:
            return content
        return json.dumps(body | self._script(body, calls_in_history(body))).encode()

    @staticmethod
    async def _refused_by(url: str, headers: Mapping[str, str], content: bytes) -> str:
        """Send a refused request again with the constraint switched off: vLLM's own refusals stay."""
        body = json.loads(content)
        body.pop("stream_options", None)
        extra = body.get("vllm_xargs", {}) | {"constrained_k2": "off"}
        extra["script"] = extra.get("script", [])[-1:]  # the end of the turn at once
        async with httpx.AsyncClient(timeout=_TIMEOUT) as client:
            answer = await client.post(url, headers=headers, json=body | {"vllm_xargs": extra, "stream": False})
        return "this package" if answer.is_success else "vLLM"

    async def _stream(
        self, exchange: Exchange, client: httpx.AsyncClient, answer: httpx.Response
    ) -> AsyncIterator[bytes]:
        whole, pending = bytearray(), b""
        streamed = answer.headers.get("content-type", "").startswith("text/event-stream")
        try:
            async for chunk in answer.aiter_bytes():
                if streamed:
                    *events, pending = (pending + chunk).split(b"\n\n")
                    for event in events:
                        _observe_lines(exchange, event)
                else:
                    whole += chunk
                yield chunk
            exchange.ended = "whole"
        except httpx.HTTPError as error:
            exchange.ended, exchange.reason = "broken", repr(error)[:200]
        finally:
            if exchange.ended == "open":  # some clients hang up as soon as they have read the last event
                exchange.ended = "whole" if exchange.stop else "cut"
            _observe_whole(exchange, bytes(whole))
            await answer.aclose()
            await client.aclose()


def _observe_lines(exchange: Exchange, event: bytes) -> None:
    kind = ""
    for line in event.decode("utf-8", "replace").splitlines():
        if line.startswith("event:"):
            kind = line.removeprefix("event:").strip()
        elif line.startswith("data:") and (text := line.removeprefix("data:").strip()) != "[DONE]":
            data = json.loads(text)
            observe_event(exchange, kind, data)
            if kind == "error" or "error" in data:
                exchange.reason = reason_of(text) or exchange.reason


def _observe_whole(exchange: Exchange, text: bytes) -> None:
    if exchange.status >= 400:
        exchange.reason = reason_of(text.decode("utf-8", "replace"))
    elif text and exchange.path in GENERATING:
        with suppress(ValueError):
            observe_event(exchange, "", json.loads(text))
