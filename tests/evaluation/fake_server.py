"""A server of a Kimi model that does everything right, except for the faults it is told to have."""

import json
import random
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from constrained_k2.formats.kimi_k2 import MEDIA_MARKERS, SPECIAL_TOKENS

if TYPE_CHECKING:
    from tests.evaluation.fake_model import FakeModel

SPECIAL_TEXTS = tuple(text for text in SPECIAL_TOKENS.values() if text not in MEDIA_MARKERS)
SPECIAL = {text: 163_584 + number for number, text in enumerate(SPECIAL_TEXTS)}
NAMES = {number: text for text, number in SPECIAL.items()}
_CUT = re.compile("|".join(map(re.escape, SPECIAL_TEXTS)))
GOOD = '{"restaurant": "Chez 李雷",  "guests": 2, "when": {"day": "2031-03-01", "hour": 19}}'

WORDS = ("choices", "message", "delta", "tool_calls", "function", "token_ids", "prompt_token_ids", "tokens", "prompt")


class Refusal(Exception):
    """Answered with this status and message."""


def tokens(text: str) -> list[int]:
    """A token a character, and one for each special text."""
    ids, start = [], 0
    for found in _CUT.finditer(text):
        ids += [*map(ord, text[start : found.start()]), SPECIAL[found[0]]]
        start = found.end()
    return ids + list(map(ord, text[start:]))


def text_of(ids: list[int]) -> str:
    return "".join(NAMES[number] if number in NAMES else chr(number) for number in ids)


class Fake:
    """Serves on loopback while the block is open.

    Args:
        *faults: What it does wrong; the names are looked for in the code below.
        key: The API key it wants.
    """

    def __init__(self, *faults: str, key: str = "") -> None:
        self.faults = set(faults)
        self.key = key
        self.chance = random.Random(0)
        fake = self

        class Handler(BaseHTTPRequestHandler):
            disable_nagle_algorithm = True  # else every answer waits for an acknowledgement
            protocol_version = "HTTP/1.0" if "endless" in faults else "HTTP/1.1"

            def do_GET(self) -> None:
                fake.answer(self, {"/v1/models": fake.models, "/version": fake.version})

            def do_POST(self) -> None:
                endpoints: dict[str, Callable[[Any], Any]] = {
                    "/tokenize": fake.tokenize,
                    "/detokenize": fake.detokenize,
                    "/v1/completions": fake.completion,
                    "/v1/chat/completions": fake.chat,
                    "/v1/messages": fake.unread,
                    "/v1/responses": fake.unread,
                }
                fake.answer(self, endpoints)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def has(self, fault: str) -> bool:
        return fault in self.faults

    def answer(self, request: BaseHTTPRequestHandler, endpoints: dict[str, Callable[[Any], Any]]) -> None:
        body = request.rfile.read(int(request.headers.get("content-length") or 0))
        status, is_chat = 200, request.path == "/v1/chat/completions"
        try:
            self.check_address(request, endpoints)
            said = endpoints[request.path](json.loads(body or b"null"))
            if (self.has("garbage") and request.command == "POST") or (self.has("garbage chats") and is_chat):
                said = self.garbage()
            data = said if isinstance(said, bytes) else json.dumps(said).encode()
        except Refusal as refusal:
            status, data = refusal.args[0], json.dumps({"error": {"message": refusal.args[1]}}).encode()
        if is_chat and self.has("not json"):
            data = b"<html>\x1b[2J"
        if is_chat and self.has("slow"):
            time.sleep(5)
        request.send_response(500 if is_chat and self.has("server error") else status)
        request.send_header("content-type", "application/json")
        if not (is_chat and self.has("endless")):
            request.send_header("content-length", str(len(data)))
        if is_chat and self.has("compressed"):
            request.send_header("content-encoding", "gzip")
        request.end_headers()
        with suppress(OSError):  # the client has seen enough
            request.wfile.write(data)
            while is_chat and self.has("endless"):
                request.wfile.write(b" " * 65_536)

    def garbage(self) -> Any:
        """Any JSON, out of the words that answers are made of."""

        def value(depth: int) -> Any:
            kind = self.chance.randrange(9 if depth < 6 else 5)
            if kind >= 7:
                return [value(depth + 1) for _ in range(self.chance.randrange(3))]
            if kind >= 5:
                return {word: value(depth + 1) for word in WORDS if self.chance.random() < 0.6}
            return (None, True, self.chance.randrange(-9, 170_000), 1e999, "\ud800 <|im_end|>")[kind]

        return value(0)

    def check_address(self, request: BaseHTTPRequestHandler, endpoints: Any) -> None:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            raise Refusal(401, "no key")
        if request.path not in endpoints or self.has(f"no {request.path}"):
            raise Refusal(404, "Not Found")

    def models(self, _: Any) -> Any:
        return {"data": [] if self.has("no models") else [{"id": "kimi-k2"}]}

    def version(self, _: Any) -> Any:
        found = "0.11.0" if self.has("old version") else "1.7.2" if self.has("new version") else "0.32.0"
        return {"version": found} | ({"rust_frontend_version": "0.32.0"} if self.has("rust") else {})

    def unread(self, _: Any) -> Any:
        raise Refusal(400, "a field is missing")

    def tokenize(self, body: Any) -> Any:
        text = body.get("prompt")
        if text is not None and self.has("markers are text"):
            return {"tokens": list(map(ord, text))}
        return {"tokens": self.prompt(body) if text is None else tokens(text)}

    def detokenize(self, body: Any) -> Any:
        return {"prompt": text_of(body["tokens"])}

    def model(self, body: Any) -> "FakeModel":
        from tests.evaluation.fake_model import FakeModel

        return FakeModel(self, body)

    def completion(self, body: Any) -> Any:
        self.admit_xargs(body, on_chat=False)
        return {"choices": [{"text": "a", "finish_reason": "length"}]}

    def admit_xargs(self, body: Any, *, on_chat: bool) -> None:
        value = (body.get("vllm_xargs") or {}).get("constrained_k2")
        if self.has("not installed"):
            return
        if value == "off" and on_chat:
            if self.has("opt-out refused"):
                raise Refusal(400, "no")
            return
        if value == "{" and on_chat and body.get("tools") and not self.has("no parser"):
            raise Refusal(
                400, "vllm_xargs.constrained_k2: must be 'on', 'off' or an engine's name beside tools, not '{'."
            )
        if value == "{":
            raise Refusal(400, "vllm_xargs.constrained_k2: must be JSON.")
        if self.has("no route") and (value or (on_chat and body.get("tools"))):
            raise Refusal(400, "server: this server parses tool calls but does not constrain them.")

    def prompt(self, body: Any) -> list[int]:
        """The prompt's ids; text of clients stays text."""
        ids: list[int] = []

        def special(text: str) -> None:
            ids.extend(tokens(text))

        def plain(text: str, location: str) -> None:
            ids.extend(tokens(text) if self.has(f"{location} injects") else map(ord, text))

        def content(message: Any) -> None:
            value = message.get("content")
            if value == "" and self.has("prints lists"):
                value = [{"type": "text", "text": ""}]
            if isinstance(value, list):
                value = str(value) if self.has("prints lists") else "".join(part["text"] for part in value)
            if value is None and self.has("prints None"):
                value = "None"
            plain(value or "", message["role"])

        if body.get("tools") and not self.has("declares nothing"):
            special("<|im_system|>tool_declare<|im_middle|>")
            tools = json.loads(json.dumps(body["tools"]))
            for tool in tools if not self.has("declares strict") else ():
                tool["function"].pop("strict", None)
            special("# Tools\n" * self.has("declares under a headline"))
            plain(json.dumps(tools, ensure_ascii=False), "description")
            special("<|im_end|>")
        calls = results = 0
        for message in body["messages"]:
            role = message["role"]
            special(f"<|im_{role if role in ('user', 'assistant') else 'system'}|>{role}<|im_middle|>")
            if role == "tool":
                result_id = message["tool_call_id"] if self.has("foreign ids") else f"functions.list_tables:{results}"
                plain(f"## Return of {result_id}\n{'    ' * self.has('indents results')}", role)
                results += 1
            content(message)
            for call in message.get("tool_calls") or ():
                call_id = call["id"] if self.has("foreign ids") else f"functions.list_tables:{calls}"
                if self.has("hides ids"):
                    call_id = f"call_{calls}"
                calls += 1
                special("<|tool_calls_section_begin|><|tool_call_begin|>")
                plain(call_id, role)
                special("<|tool_call_argument_begin|>")
                arguments = call["function"]["arguments"]
                if self.has("escaped arguments injects"):
                    special(re.sub(r"[<\[]", ".", arguments).replace("\\u003c", "<").replace("\\u005b", "["))
                else:
                    plain(arguments, "arguments")
                special("<|tool_call_end|><|tool_calls_section_end|>")
            special("<|im_end|>")
        if not self.has("no generation prompt"):
            special("<|im_assistant|>assistant<|im_middle|>")
        thinking = (body.get("chat_template_kwargs") or {}).get("thinking")
        if thinking is not None and not self.has("no switch"):
            special("<think>" if thinking else "<think></think>")
        return ids

    def chat(self, body: Any) -> Any:
        self.admit_xargs(body, on_chat=True)
        if body["model"] != "kimi-k2":
            raise Refusal(404, f"The model `{body['model']}` does not exist.")
        tools = body.get("tools") or ()
        if any(tool["function"].get("strict") and "uniqueItems" in str(tool) for tool in tools):
            if self.has("strict refused by another"):
                raise Refusal(400, "No compatible backend.")
            if not self.has("strict taken"):
                raise Refusal(400, "the tool is strict, and 'pattern' cannot be enforced.")
        if tools and body.get("tool_choice") == "auto" and self.has("no auto"):
            raise Refusal(400, '"auto" tool choice requires --enable-auto-tool-choice')
        if body.get("n", 1) > 1 and self.has("no n"):
            raise Refusal(400, "Only n=1 is supported.")
        if body.get("n", 1) > 1 and self.has("one at a time"):
            body["n"] = 1
        if body.get("logit_bias") and self.has("no logit_bias"):
            raise Refusal(400, "logit_bias is not supported")
        return self.model(body).streamed() if body.get("stream") else self.model(body).whole()
