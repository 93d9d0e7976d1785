"""An OpenAI-compatible endpoint that answers as the request's ``fake`` field says, well or badly; and requests for it."""

import json
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.evaluation.fake_server import Loopback, call_deltas, send, whole_calls
from tests.kit.tools import tool

PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["c", "f"]}}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["city"], "additionalProperties": False}
WEATHER = tool("get_weather", SCHEMA)
GOOD_CALL = ("functions.get_weather:0", "get_weather", '{"city": "Oslo"}')


def body(text: str = "Weather in Oslo?", **fields: Any) -> dict[str, Any]:
    """A request that may call ``get_weather``."""
    return {"messages": [{"role": "user", "content": text}], "tools": [WEATHER], **fields}


def write_lines(path: Path, values: Any) -> Path:
    """A file of one JSON value a line; text is written as it is."""
    lines = (value if isinstance(value, str) else json.dumps(value) for value in values)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class FakeEndpoint(Loopback):
    """An endpoint on loopback.

    ``fake`` in a body: ``calls`` ((id, name, arguments) each; by default one good call, none for a request without
    tools), ``content``, ``finish``, ``fault`` (see the code), ``fails`` (how many attempts the fault lasts),
    ``off`` (the fields of an answer that is not constrained), ``ids`` (the tokens of a whole answer).

    Args:
        owned_by: What ``/v1/models`` says; ``vllm`` makes the client ask for token ids.
        metrics: The text of ``/metrics``.
    """

    def __init__(self, owned_by: str = "somebody", metrics: str = "") -> None:
        self.owned_by = owned_by
        self.metrics = metrics
        self.asked: list[tuple[str, int | None]] = []  # model and seed of every chat request, as they came
        self.bodies: list[Any] = []  # the last ones
        self.sent_back: Any = None  # the last prompt with an answer
        self.wanted: dict[int, int] = {}  # position in a prompt that is sent back -> the likeliest token there
        self.replaced: dict[str, tuple[int, str]] = {}  # path -> status and text, in place of the right answer
        self._ended = threading.Event()
        super().__init__()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        super().__exit__()

    def answer(self, request: BaseHTTPRequestHandler, body: Any) -> None:
        path = request.path
        if path in self.replaced:
            return send(request, *self.replaced[path])
        if path == "/v1/models":
            return send(request, 200, json.dumps({"data": [{"id": "kimi-k2", "owned_by": self.owned_by}]}))
        if path == "/metrics":
            return send(request, 200 if self.metrics else 404, self.metrics, "text/plain")
        if path == "/detokenize":
            return send(request, 200, json.dumps({"prompt": "".join(map(chr, body["tokens"]))}))
        if path == "/v1/completions":
            self.sent_back = body
            return send(request, 200, json.dumps({"choices": [{"prompt_logprobs": self._logprobs(body)}]}))
        self.asked.append((body["model"], body.get("seed")))
        self.bodies = [*self.bodies[-9:], body]
        fake = body.get("fake") or {}
        if (body.get("vllm_xargs") or {}).get("constrained_k2") == "off":
            fake = fake.get("off", fake)
        return self._chat(body, fake, request)

    def _chat(self, body: Any, fake: Any, request: BaseHTTPRequestHandler) -> None:
        fault = fake.get("fault", "")
        if fault and "fails" in fake and self.asked.count((body["model"], body.get("seed"))) > fake["fails"]:
            fault = ""
        if fault == "hang":
            self._ended.wait()
        if fault in {"hang", "drop"}:
            request.close_connection = True
            return None
        if fault.isdigit():
            refusal = json.dumps({"error": {"message": "<b>no</b>"}})
            return send(request, int(fault), refusal, headers=fake.get("headers"))
        if fault in TEXTS:
            return send(request, *TEXTS[fault])
        if fault == "gzip":
            return send(request, 200, "{}", headers={"content-encoding": "gzip"})
        calls = fake.get("calls", [GOOD_CALL] if body.get("tools") else [])
        finish = fake.get("finish", "tool_calls" if calls else "stop")
        if fault == "whole" or not body.get("stream"):
            return send(request, 200, json.dumps(self._whole(fake, calls, finish)))
        request.send_response(200)
        request.send_header("content-type", "text/event-stream")
        request.send_header("transfer-encoding", "chunked")
        request.end_headers()
        for number, event in enumerate(self._events(fake, calls, finish)):
            if number == 1 and fault == "stall":
                self._ended.wait()
            if number == 1 and fault in {"cut", "stall"}:
                request.close_connection = True
                return None
            for _ in range(2000 if fault == "endless" else 0):
                _chunk(request, f"data: {json.dumps({'choices': [{'delta': {'content': 'x' * 60_000}}]})}")
            _chunk(request, BROKEN[fault] if number == 1 and fault in BROKEN else event)
        if fault != "no done":
            _chunk(request, "data: [DONE]")
        request.wfile.write(b"0\r\n\r\n")
        return None

    def _whole(self, fake: Any, calls: Any, finish: str) -> Any:
        """An answer that is not streamed, of the same tokens."""
        message = {"content": fake.get("content", ""), "tool_calls": whole_calls(calls)}
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
        for delta in call_deltas(calls):
            yield event(delta, "c" if "id" in delta["tool_calls"][0] else "a")
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
}
"""Status, text and type of whole answers that are no JSON."""


def _chunk(request: BaseHTTPRequestHandler, line: str) -> None:
    data = f"{line}\n\n".encode()
    request.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
