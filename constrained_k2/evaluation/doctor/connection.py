"""HTTP to a server that is not trusted: every answer is bounded in size and time."""

import asyncio
import json
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation.chat_answer import Unusable
from constrained_k2.evaluation.doctor.finding import shown

MAX_BYTES = 8 << 20
"""The largest answer that is read."""

SECONDS = 120.0
"""The longest that one answer may take, from the request to its last byte."""

_AT_ONCE = 4  # requests; a server that people are using is examined too


class NotServed(Exception):
    """The server has no such endpoint, or leaves out what a check needs of it."""


class Refused(Exception):
    """The server refused the request.

    Args:
        status: The HTTP status, 400 to 499.
        message: The server's words.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {shown(message, 400)}")
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Limits:
    """What one answer may cost.

    Attributes:
        size: In bytes.
        seconds: From the request to the last byte.
    """

    size: int = MAX_BYTES
    seconds: float = SECONDS


class Connection:
    """Requests to one server.

    Args:
        url: Its address, with or without ``/v1``.
        api_key: Sent as a bearer token; never shown.
        limits: What one answer may cost.

    Raises:
        InvalidRequest: The address is none.
    """

    def __init__(self, url: str, api_key: str | None = None, limits: Limits = Limits()) -> None:
        base = url.rstrip("/").removesuffix("/v1").rstrip("/")
        try:
            parsed = httpx.URL(base)
        except (httpx.InvalidURL, ValueError) as error:
            raise InvalidRequest(f"{shown(url)!r} is no address: {error}", "URL") from error
        if parsed.scheme not in {"http", "https"} or not parsed.host:
            raise InvalidRequest(f"{shown(url)!r} is no address", "URL", "Write it as http://localhost:8000")
        # Compressed answers are not asked for, and not unpacked: a few kilobytes may stand for gigabytes.
        headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {api_key}"} if api_key else {})
        self.url = base
        self._limits = limits
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._client = httpx.AsyncClient(headers=headers, timeout=limits.seconds)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def get(self, path: str) -> Any:
        """The JSON behind a path; see :meth:`post` for what is raised."""
        return _json(await self._exchange("GET", path, None), path)

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON that answers a body.

        Raises:
            Refused: An answer of 400 to 499.
            NotServed: There is no such endpoint.
            Unusable: Any other answer that is none.
        """
        return _json(await self._exchange("POST", path, body), path)

    async def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The JSON of every event of a stream; see :meth:`post` for what else is raised.

        Raises:
            Unusable: The stream ends without ``[DONE]``.
        """
        events: list[Any] = []
        for line in (await self._exchange("POST", path, body)).splitlines():
            if not line.startswith(b"data:"):
                continue
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return events
            events.append(_json(data, path))
        raise Unusable(f"the stream of {path} ends without [DONE]")

    async def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        try:
            async with (
                self._places,
                asyncio.timeout(self._limits.seconds),
                self._client.stream(method, f"{self.url}{path}", json=body) as answer,
            ):
                if answer.headers.get("content-encoding", "identity") != "identity":
                    raise Unusable(f"{path} is compressed, which was not asked for")
                data = bytearray()
                async for chunk in answer.aiter_raw():
                    data += chunk
                    if len(data) > self._limits.size:
                        raise Unusable(f"the answer of {path} is longer than {self._limits.size} bytes")
        except TimeoutError as error:
            raise Unusable(f"{path} took longer than {self._limits.seconds:.0f} s") from error
        except httpx.HTTPError as error:
            raise Unusable(f"{path}: {type(error).__name__}: {shown(str(error))}") from error
        if answer.status_code in {404, 405, 501} and not _names_the_model(bytes(data)):
            raise NotServed(f"{path} is not served ({answer.status_code})")
        if 400 <= answer.status_code < 500:
            raise Refused(answer.status_code, _message(bytes(data)))
        if answer.status_code != 200:
            raise Unusable(f"{path} answers {answer.status_code}: {shown(_message(bytes(data)))}")
        return bytes(data)


def _names_the_model(data: bytes) -> bool:
    """Whether a 404 is about the model that was asked for, not about the path."""
    return b"model" in data and b"does not exist" in data


def _json(data: bytes, path: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{path} answers no JSON: {shown(data[:80].decode(errors='replace'))!r}") from error


def _message(data: bytes) -> str:
    """The words of an error, in OpenAI's form, FastAPI's, or as they are."""
    text = data.decode(errors="replace")
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for key in ("error", "detail", "message"):
        if isinstance(value, dict) and key in value:
            value = value[key]
    return value if isinstance(value, str) else str(value)
