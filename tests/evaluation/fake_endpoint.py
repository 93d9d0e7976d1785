"""An OpenAI-compatible endpoint that answers as the request's ``fake`` field says, well or badly."""

import asyncio
import contextlib
import json
import threading
from types import TracebackType
from typing import Any, Self

GOOD_CALL = ("functions.get_weather:0", "get_weather", '{"city": "Oslo"}')


class FakeEndpoint:
    """Serves on loopback, in a thread of its own, while the block is open.

    ``fake`` in a body: ``calls`` ((id, name, arguments) each; by default one good call, none for a request without
    tools), ``content``, ``finish``, ``fault`` (see the code), ``fails`` (how many attempts the fault lasts),
    ``off`` (the fields of an answer that is not constrained), ``ids`` (the tokens of a whole answer).

    Args:
        owned_by: What ``/v1/models`` says; ``vllm`` makes the client ask for token ids.
        metrics: The text of ``/metrics``.
        delay: Seconds before an answer.
    """

    def __init__(self, owned_by: str = "somebody", metrics: str = "", delay: float = 0) -> None:
        self.owned_by = owned_by
        self.metrics = metrics
        self.delay = delay
        self.asked: list[tuple[str, int]] = []  # model and seed of every chat request, as they came
        self.bodies: list[Any] = []  # the last ones
        self.wanted: dict[int, int] = {}  # position in a prompt that is sent back -> the likeliest token there
        self.replaced: dict[str, tuple[int, str]] = {}  # path -> status and text, in place of the right answer
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()

        async def start() -> asyncio.Server:
            return await asyncio.start_server(self._connection, "127.0.0.1", 0)

        self._server = asyncio.run_coroutine_threadsafe(start(), self._loop).result(10)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async def stop() -> None:
            self._server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, _, rest = head.decode().partition("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in rest.strip().split("\r\n"))
                data = await reader.readexactly(int(headers.get("content-length", 0)))
                if not await self._answer(first.split()[1], json.loads(data or b"{}"), writer):
                    break
        writer.close()

    async def _answer(self, path: str, body: Any, writer: asyncio.StreamWriter) -> bool:
        """True if the connection stays open."""
        if path in self.replaced:
            return await _send(writer, *self.replaced[path])
        if path == "/v1/models":
            return await _send(writer, 200, json.dumps({"data": [{"id": "kimi-k2", "owned_by": self.owned_by}]}))
        if path == "/health":
            return await _send(writer, 200, "")
        if path == "/metrics":
            return await _send(writer, 200 if self.metrics else 404, self.metrics, "text/plain")
        if path == "/detokenize":
            return await _send(writer, 200, json.dumps({"prompt": "".join(map(chr, body["tokens"]))}))
        if path == "/v1/completions":
            return await _send(writer, 200, json.dumps({"choices": [{"prompt_logprobs": self._logprobs(body)}]}))
        self.asked.append((body["model"], body["seed"]))
        self.bodies = [*self.bodies[-9:], body]
        await asyncio.sleep(self.delay)
        fake = body.get("fake") or {}
        if (body.get("vllm_xargs") or {}).get("constrained_k2") == "off":
            fake = fake.get("off", fake)
        return await self._chat(body, fake, writer)

    async def _chat(self, body: Any, fake: Any, writer: asyncio.StreamWriter) -> bool:
        fault = fake.get("fault", "")
        if fault and "fails" in fake and self.asked.count((body["model"], body["seed"])) > fake["fails"]:
            fault = ""
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "drop":
            return False
        if fault.isdigit():
            refusal = json.dumps({"error": {"message": "<b>no</b>"}})
            return await _send(writer, int(fault), refusal, headers=fake.get("headers", ""))
        if fault in TEXTS:
            return await _send(writer, *TEXTS[fault])
        if fault == "gzip":
            return await _send(writer, 200, "{}", headers="content-encoding: gzip\r\n")
        calls = fake.get("calls", [GOOD_CALL] if body.get("tools") else [])
        finish = fake.get("finish", "tool_calls" if calls else "stop")
        if fault == "whole" or not body.get("stream"):
            return await _send(writer, 200, json.dumps(self._whole(fake, calls, finish)))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for number, event in enumerate(self._events(fake, calls, finish)):
            if number == 1 and fault == "cut":
                return False
            if number == 1 and fault == "stall":
                await writer.drain()
                await asyncio.sleep(3600)
            if fault == "endless":
                await _flood(writer)
            _chunk(writer, BROKEN[fault] if number == 1 and fault in BROKEN else event)
        if fault != "no done":
            _chunk(writer, "data: [DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _whole(self, fake: Any, calls: Any, finish: str) -> Any:
        """An answer that is not streamed, of the same tokens."""
        parts = [{"id": i, "function": {"name": name, "arguments": text}} for i, name, text in calls]
        message = {"content": fake.get("content", ""), "tool_calls": parts}
        choice: dict[str, Any] = {"message": message, "finish_reason": finish}
        answer: dict[str, Any] = {"choices": [choice], "usage": {"completion_tokens": 3}}
        if self.owned_by == "vllm":
            text = "".join(f"c{'a' * len(range(0, len(arguments), 8))}" for _, _, arguments in calls)
            choice["token_ids"] = fake.get("ids", list(map(ord, fake.get("raw", "w") + text)))
            answer["prompt_token_ids"] = list(map(ord, "the prompt"))
        return answer

    def _logprobs(self, body: Any) -> list[Any]:
        """The probability of each token is 1/2 to the power of the last digit of its id, of what is wanted 0.9."""
        found: list[Any] = [
            None, *({str(token): {"logprob": -(token % 10) * 0.6931471805599453}} for token in body["prompt"][1:])
        ]  # fmt: skip
        for position, token in self.wanted.items() if body["prompt_logprobs"] else ():
            found[position][str(token)] = {"logprob": -0.1053605156578263}
        return found

    def _events(self, fake: Any, calls: Any, finish: str) -> Any:
        """The lines of a stream, a part of the answer each."""
        ids = self.owned_by == "vllm"

        def event(delta: Any, text: str = "", **more: Any) -> str:
            choice = {"delta": delta} | ({"token_ids": list(map(ord, text))} if ids else {})
            return f"data: {json.dumps({'choices': [choice | more]})}"

        if ids:
            yield f"data: {json.dumps({'choices': [], 'prompt_token_ids': list(map(ord, 'the <|im_user|> prompt'))})}"
        yield event({"content": fake.get("content", "")}, fake.get("raw", "w"))
        for index, (call_id, name, arguments) in enumerate(calls):
            part: Any = {"index": index, "id": call_id, "function": {"name": name, "arguments": ""}}
            yield event({"tool_calls": [part]}, "c")
            for start in range(0, len(arguments), 8):
                part = {"index": index, "function": {"arguments": arguments[start : start + 8]}}
                yield event({"tool_calls": [part]}, "a")
        yield event({}, finish_reason=finish)
        yield f"data: {json.dumps({'choices': [], 'usage': {'completion_tokens': 7, 'prompt_tokens': 11}})}"


BROKEN = {
    "broken": "data: {not json",
    "error event": 'data: {"error": {"message": "the engine died"}}',
    "wrong types": 'data: {"choices": [{"delta": {"content": 7}}]}',
    "no object": "data: [1, 2]",
    "deep": "data: " + "[" * 100_000,
    "a number": "data: 7",
}
"""Lines that no stream should hold."""

TEXTS = {
    "html": (200, "<html>it works</html>", "application/json"),
    "odd choices": (200, '{"choices": [7]}', "application/json"),
    "odd message": (200, '{"choices": [{"message": 7}]}', "application/json"),
    "bare 500": (500, "Internal Server Error", "text/plain"),
}
"""Status, text and type of whole answers that are no JSON."""


async def _flood(writer: asyncio.StreamWriter) -> None:
    event = f"data: {json.dumps({'choices': [{'delta': {'content': 'x' * 60_000}}]})}"
    for _ in range(2000):
        _chunk(writer, event)
        await writer.drain()


def _chunk(writer: asyncio.StreamWriter, line: str) -> None:
    data = f"{line}\n\n".encode()
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def _send(
    writer: asyncio.StreamWriter, status: int, text: str, kind: str = "application/json", headers: str = ""
) -> bool:
    data = text.encode()
    head = f"HTTP/1.1 {status} -\r\ncontent-type: {kind}\r\n{headers}content-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    return True
