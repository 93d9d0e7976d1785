"""An arm's server: asked, asked again where that may help, and never the cause of an exception."""

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import httpx

from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation.ab.arms import Arm, merged
from constrained_k2.evaluation.ab.arrival import MAX_ERROR, Arrival, NoAnswer
from constrained_k2.evaluation.ab.records import SUCCESS, Record
from constrained_k2.evaluation.chat_answer import ChatAnswer, Unusable, member
from constrained_k2.evaluation.doctor.connection import Connection, NotServed, Refused
from constrained_k2.evaluation.doctor.connection import Limits as ConnectionLimits

_ASKED_AGAIN = {"connection", "rate_limited", "server_error"}
_MISSED = 5  # requests in a row without a connection, after which a server is not waited for any more
_SECONDS = 30.0  # for an answer that is not of the run
_RAW_TOKENS = 4096  # of an answer that is turned into text
_RAW_TEXT = 1 << 16  # characters of it that are kept


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may cost.

    Attributes:
        seconds: From the request to the last byte, each attempt.
        attempts: How often it is sent, while there is no connection, or the answer is 429 or 500 to 599.
        backoff: Seconds before the second attempt; doubled each time.
        longest_wait: Seconds that are waited at most between attempts, whatever the server says.
        size: Bytes of an answer on the wire.
        text: Characters of its text, reasoning and arguments.
        concurrency: How many requests are out at a time, over all arms.
    """

    seconds: float = 600.0
    attempts: int = 4
    backoff: float = 1.0
    longest_wait: float = 60.0
    size: int = 64 << 20
    text: int = 1 << 20  # escaped, with the rest of its record, within a line of the record file
    concurrency: int = 8


@dataclass(frozen=True, slots=True)
class Reply:
    """A record, and the tokens that it does not keep.

    Attributes:
        record: What came.
        token_ids: What the model wrote, where the server names it.
        prompt_tail: The last tokens of what it read; the same.
    """

    record: Record
    token_ids: tuple[int, ...] = ()
    prompt_tail: tuple[int, ...] = ()


class Endpoint:
    """Asks an arm's server.

    Args:
        arm: Whom to ask, and what to add to every request.
        limits: What one request may cost.

    Raises:
        InvalidRequest: The arm's API key is not set, or its address is none.
    """

    def __init__(self, arm: Arm, limits: Limits) -> None:
        key = arm.api_key()
        # Compressed answers are not asked for: a few kilobytes may stand for gigabytes, and unpacking takes time.
        headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {key}"} if key else {})
        pool = httpx.Limits(max_connections=limits.concurrency + 2, max_keepalive_connections=limits.concurrency)
        try:
            self._client = httpx.AsyncClient(
                base_url=arm.base_url, headers=headers, timeout=limits.seconds, limits=pool
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise InvalidRequest(f"{arm.url!r} is no address: {error}", f"arm {arm.name}") from None
        # For all but the requests of the run: bounded, and an answer that is none is an error.
        self._connection = Connection(arm.base_url, key, ConnectionLimits(seconds=min(_SECONDS, limits.seconds)))
        self.arm = arm
        self._limits = limits
        self._model = arm.model
        self._is_vllm = False
        self._tells_text = True
        self._missed = 0

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        await self._connection.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connection.__aexit__(kind, error, trace)
        await self._client.__aexit__(kind, error, trace)

    async def open(self) -> None:
        """Find out the model, if the arm names none, and whether this is vLLM, which can name tokens.

        Raises:
            InvalidRequest: No model is named, and the server does not tell any.
        """
        problem = "serves no model"
        try:
            models = member(await self._connection.get("/v1/models"), "data", list, "/v1/models") or ()
            known = [model for model in models if isinstance(model, dict) and isinstance(model.get("id"), str)]
            self._is_vllm = any(model.get("owned_by") == "vllm" for model in known)
            self._model = self._model or (known[0]["id"] if known else "")
        except (NotServed, Refused, Unusable) as error:
            problem = f"does not tell its models: {error}"
        if not self._model:
            place = f"arm {self.arm.name} at {self.arm.url}"
            raise InvalidRequest(problem, place, "Name a model (--model) if the address is right")

    async def ask(self, key: str, repetition: int, body: Mapping[str, Any]) -> Reply:
        """Send a request, again while that may help, and tell what came.

        Args:
            key: The sample's.
            repetition: From 0.
            body: The request, but for the model, what the arm adds, and what asks for a stream.
        """
        request = merged(body, self.arm.added)
        request |= {"model": self._model, "stream": True, "stream_options": {"include_usage": True}}
        if self._is_vllm:
            request["return_token_ids"] = True
        attempts = 1 if self._missed >= _MISSED else self._limits.attempts
        attempt = 0
        while True:
            attempt += 1
            record = Record(key, repetition, SUCCESS, attempts=attempt, started=round(time.time(), 3))
            arrival = Arrival(self._limits.size, self._limits.text)
            try:
                answer = await self._exchange(request, arrival)
            except NoAnswer as failed:
                self._missed = self._missed + 1 if failed.failure == "connection" else 0
                if attempt >= attempts or failed.failure not in _ASKED_AGAIN:
                    record = replace(record, status="failed", failure=failed.failure, error=failed.error)
                    return Reply(_timed(record, arrival))
                wait = self._limits.backoff * 2 ** (attempt - 1) if failed.wait is None else failed.wait
                await asyncio.sleep(min(wait, self._limits.longest_wait))
                continue
            self._missed = 0
            record = replace(
                record,
                finish_reason=answer.finish_reason,
                content=answer.content,
                reasoning=answer.reasoning,
                calls=answer.calls,
            )
            return Reply(_timed(record, arrival), answer.token_ids or (), arrival.prompt_tail)

    async def text_of(self, reply: Reply) -> Record:
        """The record with the text of its tokens, markers and all: for answers that are worth looking at.

        vLLM hands over no text with markers, but turns tokens into text (``/detokenize``, vLLM 0.32
        entrypoints/serve/tokenize). Where the server cannot, the record stays as it is.
        """
        if not reply.token_ids or not self._tells_text:
            return reply.record
        raw = await self._detokenized(reply.token_ids[-_RAW_TOKENS:])
        return replace(reply.record, raw=raw, prompt_tail=await self._detokenized(reply.prompt_tail))

    async def _detokenized(self, ids: tuple[int, ...]) -> str:
        if not ids or not self._tells_text:
            return ""
        try:
            answered = await self._connection.post("/detokenize", {"model": self._model, "tokens": ids})
            text = member(answered, "prompt", str, "/detokenize")
        except NotServed:
            self._tells_text = False
            return ""
        except (Refused, Unusable):
            return ""  # the text is an extra: the report shows what was parsed instead
        return (text or "")[-_RAW_TEXT:]

    async def _exchange(self, request: dict[str, Any], arrival: Arrival) -> ChatAnswer:
        """One attempt.

        Raises:
            NoAnswer: What came is none.
        """
        try:
            async with (
                asyncio.timeout(self._limits.seconds),
                self._client.stream("POST", "/v1/chat/completions", json=request) as response,
            ):
                if response.status_code != 200:
                    raise await _refusal(response)
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise NoAnswer("invalid_answer", "the answer is compressed, which was not asked for")
                whole = "json" in response.headers.get("content-type", "")
                async for chunk in response.aiter_raw():
                    if whole:
                        arrival.feed_whole(chunk)
                    elif arrival.feed(chunk):
                        break
                return arrival.answer(whole=whole)
        except TimeoutError:
            raise NoAnswer("timeout", f"no whole answer within {self._limits.seconds:g} s") from None
        except httpx.ConnectTimeout as error:
            raise NoAnswer("connection", f"{type(error).__name__}: {error}") from None
        except httpx.TimeoutException as error:
            raise NoAnswer("timeout", f"{type(error).__name__}: {error}") from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            failure = "broken_stream" if arrival.has_begun else "connection"
            raise NoAnswer(failure, f"{type(error).__name__}: {error}") from None
        except (ValueError, RecursionError) as error:  # the body cannot be written as JSON: NaN, a lone surrogate
            raise NoAnswer("refused", f"the request cannot be sent: {type(error).__name__}: {error}") from None


async def _refusal(response: httpx.Response) -> NoAnswer:
    data = bytearray()
    async for chunk in response.aiter_raw():
        data += chunk
        if len(data) > 4 * MAX_ERROR:
            break
    status = response.status_code
    words = f"{status}: {bytes(data[: 4 * MAX_ERROR]).decode(errors='replace')}"
    if status == 429:
        return NoAnswer("rate_limited", words, _retry_after(response))
    return NoAnswer("server_error" if status >= 500 else "refused", words, _retry_after(response))


def _retry_after(response: httpx.Response) -> float | None:
    """The seconds of ``Retry-After`` (RFC 9110, 10.2.3); its other form, a date, is left aside."""
    try:
        seconds = float(response.headers["retry-after"])
    except (KeyError, ValueError):
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _timed(record: Record, arrival: Arrival) -> Record:
    first = None if arrival.first is None else round((arrival.first - arrival.start) * 1e3, 2)
    return replace(
        record,
        ttft_ms=first,
        duration_ms=round((time.perf_counter() - arrival.start) * 1e3, 2),
        gaps_ms=tuple(arrival.gaps),
        prompt_tokens=arrival.prompt_tokens,
        completion_tokens=arrival.tokens,
    )
