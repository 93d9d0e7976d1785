"""HTTP client for servers that are not trusted: every answer is bounded in size and time."""

import asyncio
import json
import math
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

import httpx
import msgspec

from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation.answer import ChatAnswer, Completion, NoAnswer, StreamReader, read_whole, validated
from constrained_k2.explain.view import printable

_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_DIRECT = dict.fromkeys(("all://localhost", "all://127.0.0.1"))  # a proxy named by the environment is another machine
_MAX_ERROR_BODY = 1 << 16  # bytes
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The bounds of one answer."""

    size: int = 8 << 20  # bytes
    seconds: float = 120.0  # from the request to the last byte


class Refused(NoAnswer):
    """The server answers with a status from 400 to 499; ``message`` is its own, of any length and content."""

    def __init__(self, status: int, message: str, wait: float | None = None) -> None:
        super().__init__("rate_limited" if status == 429 else "refused", f"{status}: {printable(message, 400)}", wait)
        self.status = status
        self.message = message


class NotServed(NoAnswer):
    """The server lacks an endpoint, or a field that a check needs."""

    def __init__(self, error: str, status: int = 404) -> None:
        super().__init__("server_error" if status >= 500 else "refused", error)


class _Model(msgspec.Struct):
    id: str = ""
    owned_by: str = ""


class _Models(msgspec.Struct):
    data: list[_Model] | None = None


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Text(msgspec.Struct):
    prompt: str


class Client:
    """Sends requests to one server; raises ``InvalidRequest`` if its address, named by ``location``, is malformed."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        limits: BodyLimits = BodyLimits(),
        *,
        concurrency: int = 4,
        location: str = "URL",
    ) -> None:
        self.url = base_url(url, location)
        # A few compressed kilobytes may unpack to gigabytes, so compression is not offered.
        headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {api_key}"} if api_key else {})
        pool = httpx.Limits(max_connections=None, max_keepalive_connections=concurrency)
        self._http = httpx.AsyncClient(headers=headers, limits=pool, mounts=_DIRECT)
        self._limits = limits
        self._slots = asyncio.Semaphore(concurrency)

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.__aexit__()

    async def request(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """POST the body, or GET without one: the answer's JSON. Raises ``Refused``, ``NotServed`` or ``NoAnswer``."""
        async with self._open(path, body) as (_, chunks):
            return _decoded(await _joined(chunks), path)

    async def text(self, path: str) -> str:
        """The text of a path that is not JSON; raises as :meth:`request` does."""
        async with self._open(path, None) as (_, chunks):
            return (await _joined(chunks)).decode(errors="replace")

    async def models(self) -> dict[str, str]:
        """Name -> owner of the models; without names that cannot be sent back."""
        listed = validated(await self.request("/v1/models"), _Models, "/v1/models").data or ()
        return {model.id: model.owned_by for model in listed if model.id and not _SURROGATE.search(model.id)}

    async def tokenize(self, body: dict[str, Any]) -> list[int]:
        """The ids of a prompt, special tokens included; vLLM 0.32, entrypoints/serve/tokenize."""
        return validated(await self.request("/tokenize", body), _Tokens, "/tokenize").tokens

    async def detokenize(self, model: str, ids: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        body = {"model": model, "tokens": ids}
        return validated(await self.request("/detokenize", body), _Text, "/detokenize").prompt

    async def likeliest(
        self, model: str, ids: Sequence[int], count: int, fields: dict[str, Any], *, top: int = 0
    ) -> list[dict[int, float]]:
        """For each of the last ``count`` tokens: it and the ``top`` likeliest tokens in its place, by vLLM.

        Each has the logarithm of its probability. ``fields`` are added to the request. Raises as :meth:`request` does.
        """
        body = {"model": model, "prompt": list(ids), "max_tokens": 1, "temperature": 0, "prompt_logprobs": top}
        answer = await self.request(_COMPLETIONS, body | fields)
        choices = validated(answer, Completion, _COMPLETIONS).choices
        listed = (choices[0].prompt_logprobs or []) if choices else []
        last = [
            {int(token): each.logprob for token, each in (found or {}).items() if token.isdecimal()}
            for found in listed[len(ids) - count :]
        ]
        if len(listed) != len(ids) or not all(map(dict.__contains__, last, ids[len(ids) - count :])):
            raise NoAnswer("invalid_answer", f"{_COMPLETIONS} gives no probability of each token of the prompt")
        return last

    async def chat(self, body: dict[str, Any]) -> list[ChatAnswer]:
        """The choices of a chat completion, one or more; raises as :meth:`request` does."""
        return read_whole(await self.request(_CHAT, body))

    async def chat_streamed(
        self,
        body: dict[str, Any],
        on_event: Callable[[Completion | None], None] = lambda _: None,
        *,
        whole_ok: bool = False,
        limits: BodyLimits | None = None,
    ) -> ChatAnswer:
        """A streamed chat completion of one choice, or with ``whole_ok`` one from a server that ignores ``stream``.

        ``on_event`` receives each event, None for a whole answer. Raises as :meth:`request` does.
        """
        reader = StreamReader()
        async with self._open(_CHAT, body, limits) as (response, chunks):
            if whole_ok and "json" in response.headers.get("content-type", ""):
                answer = read_whole(_decoded(await _joined(chunks), _CHAT))[0]
                on_event(None)
                return answer
            async for line in _lines(chunks):
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return reader.answer()
                if line.startswith(b"data:"):
                    on_event(reader.add(_decoded(data, _CHAT)))
        raise NoAnswer("broken_stream", f"the stream of {_CHAT} ends without [DONE]")

    @asynccontextmanager
    async def _open(
        self, path: str, body: dict[str, Any] | None, limits: BodyLimits | None = None
    ) -> AsyncIterator[tuple[httpx.Response, AsyncIterator[bytes]]]:
        limits, received = limits or self._limits, 0

        async def bounded(response: httpx.Response) -> AsyncIterator[bytes]:
            nonlocal received
            async for chunk in response.aiter_raw():
                received += len(chunk)
                if received > limits.size:
                    raise NoAnswer("too_long", f"the answer of {path} is longer than {limits.size} bytes")
                yield chunk

        try:
            method = "GET" if body is None else "POST"
            request = self._http.build_request(method, f"{self.url}{path}", json=body, timeout=limits.seconds)
        except (ValueError, RecursionError) as error:  # NaN, a lone surrogate
            raise NoAnswer("refused", f"the request is not JSON: {_named(error)}") from None
        try:
            async with (
                self._slots,
                asyncio.timeout(limits.seconds),
                aclosing(await self._http.send(request, stream=True)) as response,
            ):
                if response.status_code != 200:
                    raise await _refusal(response, path)
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise NoAnswer("invalid_answer", f"{path} sent a compressed body although no encoding was accepted")
                yield response, bounded(response)
        except httpx.ConnectTimeout as error:
            raise NoAnswer("connection", f"{path}: {_named(error)}") from None
        except (TimeoutError, httpx.TimeoutException):
            raise NoAnswer("timeout", f"{path} took longer than {limits.seconds:g} s") from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise NoAnswer("broken_stream" if received else "connection", f"{path}: {_named(error)}") from None


def base_url(url: str, location: str) -> str:
    """An address without ``/v1`` and slashes at its end; raises ``InvalidRequest`` if it is malformed."""
    base = url.rstrip("/").removesuffix("/v1").rstrip("/")
    with suppress(httpx.InvalidURL, ValueError):
        parsed = httpx.URL(base)
        if parsed.scheme in {"http", "https"} and parsed.host:
            return base
    raise InvalidRequest(f"malformed address {printable(url)!r}", location, "Write it as http://localhost:8000")


def api_key_in(variable: str, location: str) -> str | None:
    """The API key in an environment variable, None for ``""``; raises ``InvalidRequest`` if it cannot be used."""
    key = os.environ.get(variable)
    if variable and not key:
        raise InvalidRequest(f"the environment variable {variable!r} is not set", location)
    if key and not (key.isascii() and key.isprintable()):  # the HTTP library's error would show the key
        problem = f"the API key in {variable!r} has characters that a header cannot hold, such as a line break"
        raise InvalidRequest(problem, location)
    return key


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {printable(str(error))}"


async def _joined(chunks: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in chunks])


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Lines of a stream; httpx's own ``aiter_lines`` also splits at U+2028, which JSON strings may contain."""
    rest = bytearray()
    async for chunk in chunks:
        rest += chunk
        if b"\n" in chunk:
            *lines, rest = rest.split(b"\n")
            for line in lines:
                yield bytes(line)


def _decoded(data: bytes, path: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        words = printable(data[:80].decode(errors="replace"))
        problem = f"{path} returned a body that is not JSON ({type(error).__name__}): {words!r}"
        raise NoAnswer("invalid_answer", problem) from None


async def _refusal(response: httpx.Response, path: str) -> NoAnswer:
    data, status = bytearray(), response.status_code
    async for chunk in response.aiter_raw():
        data += chunk
        if len(data) > _MAX_ERROR_BODY:
            break
    # A 404 may also be about the model rather than the path.
    if status in {404, 405, 501} and not (b"model" in data and b"does not exist" in data):
        return NotServed(f"{path} is not served ({status})", status)
    message: Any = data.decode(errors="replace")  # in OpenAI's form, FastAPI's, or as it is
    with suppress(ValueError, RecursionError):
        message = json.loads(message)
    for key in ("error", "detail", "message"):
        if isinstance(message, dict) and key in message:
            message = message[key]
    if 400 <= status < 500:
        return Refused(status, str(message), _retry_after(response))
    failure = "server_error" if status >= 500 else "refused"
    return NoAnswer(failure, f"{path} answers {status}: {printable(str(message))}", _retry_after(response))


def _retry_after(response: httpx.Response) -> float | None:
    """The seconds of ``Retry-After`` (RFC 9110, 10.2.3); its other form, a date, is ignored."""
    try:
        seconds = float(response.headers["retry-after"])
    except (KeyError, ValueError):
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
