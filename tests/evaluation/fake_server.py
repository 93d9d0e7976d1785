"""A server of a Kimi model that does everything right, except for the faults it is told to have."""

import json
import random
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from constrained_k2.formats.kimi_k2 import MEDIA_MARKERS, SPECIAL_TOKENS

SPECIAL_TEXTS = tuple(text for text in SPECIAL_TOKENS.values() if text not in MEDIA_MARKERS)
SPECIAL = {text: 163_584 + number for number, text in enumerate(SPECIAL_TEXTS)}
NAMES = {number: text for text, number in SPECIAL.items()}
_CALL = re.compile(r"<\|tool_call_begin\|>(.*?)<\|tool_call_argument_begin\|>(.*?)(<\|tool_call_end\|>|\Z)", re.DOTALL)
_CUT = re.compile("|".join(map(re.escape, SPECIAL_TEXTS)))
GOOD = '{"restaurant": "Chez 李雷",  "guests": 2, "when": {"day": "2031-03-01", "hour": 19}}'

WORDS = ("choices", "message", "delta", "tool_calls", "function", "token_ids", "prompt_token_ids", "tokens", "prompt")


Call = tuple[str, str, str]  # id, name, arguments


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


def whole_calls(calls: Iterable[Call]) -> list[Any]:
    return [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]


def call_deltas(calls: Iterable[Call]) -> Iterator[Any]:
    """The parts of calls, as a stream has them."""
    for index, (call_id, name, arguments) in enumerate(calls):
        yield {"tool_calls": [{"index": index, "id": call_id, "function": {"name": name, "arguments": ""}}]}
        for start in range(0, len(arguments), 8):
            yield {"tool_calls": [{"index": index, "function": {"arguments": arguments[start : start + 8]}}]}


def send(
    request: BaseHTTPRequestHandler,
    status: int,
    text: str | bytes,
    kind: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> None:
    data = text if isinstance(text, bytes) else text.encode()
    request.send_response(status)
    for name, value in {"content-type": kind, "content-length": f"{len(data)}", **(headers or {})}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(data)


class Loopback:
    """Serves HTTP on loopback, with a thread for each connection, while the block is open."""

    def __init__(self) -> None:
        serve = self.answer

        class Handler(BaseHTTPRequestHandler):
            disable_nagle_algorithm = True  # else every answer waits for an acknowledgement
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                serve(self, json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"null"))

            def handle(self) -> None:
                with suppress(OSError):  # the client has seen enough
                    super().handle()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, body: Any) -> None:
        raise NotImplementedError


class Fake(Loopback):
    """A server of Kimi K2.

    Args:
        *faults: What it does wrong; the names are looked for in the code below.
        key: The API key it wants.
    """

    def __init__(self, *faults: str, key: str = "") -> None:
        self.faults = set(faults)
        self.key = key
        self.chance = random.Random(0)
        super().__init__()

    def has(self, fault: str) -> bool:
        return fault in self.faults

    def said(self, request: BaseHTTPRequestHandler, body: Any) -> Any:
        endpoints: dict[str, Callable[[Any], Any]] = {
            "/v1/models": self.models,
            "/version": self.version,
            "/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
            "/v1/completions": self.completion,
            "/v1/chat/completions": self.chat,
            "/v1/messages": self.unread,
            "/v1/responses": self.unread,
        }
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            raise Refusal(401, "no key")
        if request.path not in endpoints or self.has(f"no {request.path}"):
            raise Refusal(404, "Not Found")
        said = endpoints[request.path](body)
        is_chat = request.path == "/v1/chat/completions"
        is_garbage = (self.has("garbage") and request.command == "POST") or (self.has("garbage chats") and is_chat)
        return self.garbage() if is_garbage else said

    def answer(self, request: BaseHTTPRequestHandler, body: Any) -> None:
        status, is_chat = 200, request.path == "/v1/chat/completions"
        try:
            said = self.said(request, body)
        except Refusal as refusal:
            status, said = refusal.args[0], {"error": {"message": refusal.args[1]}}
        data = said if isinstance(said, bytes) else json.dumps(said).encode()
        if is_chat and self.has("not json"):
            data = b"<html>\x1b[2J"
        send(request, 500 if is_chat and self.has("server error") else status, data)

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


class FakeModel:
    """One request's answers: those of Kimi K2, and what both formats share."""

    string, string_of_specials = "a", f"a{9 * '<|im_middle|>'}"  # of a search

    def __init__(self, fake: Fake, body: Any) -> None:
        self.has = fake.has
        self.body = body
        self.choice = body.get("tool_choice", "none")
        self.is_pushed = any(strength > 0 for strength in (body.get("logit_bias") or {}).values())
        self.earlier_calls = sum(len(message.get("tool_calls") or ()) for message in body["messages"])
        self.prompt_ids = fake.prompt(body)
        ids = self.encoded()
        self.cut = len(ids) > body.get("max_tokens", 10_000)
        self.ids = ids[: body.get("max_tokens", 10_000)]

    @property
    def leaks(self) -> bool:
        """True if it writes markers alone."""
        fault = {"auto": "free under auto", "none": "leaks markers"}.get(str(self.choice))
        return self.is_pushed and fault is not None and self.has(fault)

    def said(self) -> str | list[tuple[str, str]]:
        """A text, or the name and the arguments of each call."""
        prompt = str(self.body["messages"][-1]["content"])
        if not self.body.get("tools"):
            return "42"
        if self.choice == "none" and not self.has("calls under none"):
            return "Blue scatters."
        refuses = self.has("obeys the model") and ("Call " not in prompt or self.is_pushed)
        if self.choice != "none" and (refuses or (self.choice == "auto" and "Do not" in prompt)):
            return "I would rather not."
        is_single = self.body.get("parallel_tool_calls") is False and not self.has("many calls")
        count = 3 if "twice" in prompt and not is_single and isinstance(self.choice, str) else 1
        return [self.call(number) for number in range(count)]

    def call(self, number: int) -> tuple[str, str]:
        choice, names = self.choice, ["book_table", "list_tables"]
        name = choice["function"]["name"] if isinstance(choice, dict) else names[min(number, 1)]
        if self.has("names another") and name in names:
            name = names[1 - names.index(name)]
        arguments = "{}"
        if name == "book_table":
            arguments = GOOD
        elif name == "search":
            string = self.string_of_specials if self.has("special tokens in strings") else self.string
            arguments = f'{{"query": "{string}"}}'
        if self.has("invalid arguments"):
            arguments = arguments.replace('"guests": 2', '"guests": 400')
        name = "a<think>" if self.has("markers in names") else name
        return "cancel_table" if self.has("undeclared names") else name, arguments

    def encoded(self) -> list[int]:
        """The whole turn, its end included."""
        if self.leaks:
            return tokens("<|tool_calls_section_begin|>" * 8)
        said, is_alone = self.said(), not self.body.get("tools")
        if isinstance(said, str):
            thinking = (self.body.get("chat_template_kwargs") or {}).get("thinking")
            reasons = is_alone and bool(thinking or self.has("always reasons"))
            ends = 20 if is_alone and self.has("runs on") else 1
            return tokens(f"{'Seventeen and so on.</think>' * reasons}{said}{'<|im_end|>' * ends}")
        first, step = self.earlier_calls, 1
        if self.has("restarts indexes"):
            first = 0
        if self.has("repeats ids"):
            step = 0
        calls = "".join(
            f"<|tool_call_begin|>functions.{name}:{first + step * number}<|tool_call_argument_begin|>{arguments}"
            "<|tool_call_end|>"
            for number, (name, arguments) in enumerate(said)
        )
        return tokens(f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|><|im_end|>")

    def read(self) -> tuple[str, str, list[Call]]:
        """``(reasoning, content, calls)``; a stream shows cut calls too."""
        text = text_of(self.ids).removesuffix("<|im_end|>")
        reasoning, _, content = text.rpartition("</think>")
        if self.has("reasoning is content"):
            reasoning, content = "", text
        calls: list[Call] = []
        for call_id, arguments, end in _CALL.findall(content):
            if end or self.body.get("stream") or self.has("hands over pieces"):
                name = call_id.removeprefix("functions.").rpartition(":")[0]
                shown_id = f"call_{len(calls)}" if self.has("renames ids") else call_id
                calls.append((shown_id, name, self.returned(arguments) if end else arguments))
        if not self.has("leaks markers"):
            content = content.partition("<|tool_calls_section_begin|>")[0]
        return reasoning, content, calls

    def returned(self, arguments: str) -> str:
        """A whole call's arguments, as the server returns them."""
        if self.has("many digits"):
            return "1" * 6_000
        if self.has("reformats"):
            return json.dumps(json.loads(arguments), separators=(",", ":"), ensure_ascii=False)
        return arguments

    def parsed(self) -> tuple[str, str, str, list[Call]]:
        """``(finish_reason, reasoning, content, calls)``."""
        reasoning, content, calls = self.read()
        if self.has("last part of names"):
            calls = [(call_id, name.rpartition(".")[2], arguments) for call_id, name, arguments in calls]
        if self.has("loses calls"):
            calls = calls[:1]
        claims = self.has("claims to have ended") and calls
        return "length" if self.cut and not claims else "tool_calls" if calls else "stop", reasoning, content, calls

    def whole(self) -> Any:
        finish, reasoning, content, calls = self.parsed()
        message = {"content": content, "reasoning": reasoning or None, "tool_calls": whole_calls(calls)}
        ids = None if self.has("no ids") else self.ids
        choice = {"finish_reason": finish, "message": message, "token_ids": ids}
        count = self.body.get("n", 1)
        return {
            "choices": [choice] * count,
            "prompt_token_ids": None if self.has("no ids") else self.prompt_ids,
            "usage": {"completion_tokens": len(self.ids) * count},
        }

    def streamed(self) -> bytes:
        finish, reasoning, content, calls = self.parsed()
        if self.has("streams other text"):
            content = f" {content}"
        if self.has("streams other calls"):
            calls = [(i, n, a.replace("  ", " ")) for i, n, a in calls]
        if self.has("streams another finish"):
            finish = "stop"
        deltas = [{"reasoning": reasoning}, {"content": content}, *call_deltas(calls)]
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": finish})
        if not self.has("no ids"):
            choices[0]["token_ids"] = self.ids
        lines = [f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices]
        return "".join([*lines, *([] if self.has("no done") else ["data: [DONE]\n\n"])]).encode()
