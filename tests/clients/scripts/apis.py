"""Libraries whose requests and answers are those of an endpoint: one class for them all, asked in the words of chats."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anthropic
import openai

from tests.clients import endpoints
from tests.clients.scripts.common import CHAT_TOOLS, KEY, QUESTION, TIMEOUT, Weather, check_calls
from tests.clients.table import LEFT_OUT, Row
from tests.kit.answers import Seen, streamed, whole

CALLED = {"chat": "tool_calls", "messages": "tool_use"}
"""The reason of an answer with calls; the Responses API has no such."""


@dataclass
class Api:
    """A library's functions for an endpoint.

    Attributes:
        endpoint: A key of :data:`tests.clients.endpoints.PATHS`.
        functions: Has ``create``, ``parse`` and ``stream``; those that a module's scripts use.
        later: The same of the asynchronous client.
        refused: The error of a bad request.
        form: The field of the type that an answer is parsed into, and how the parsed one is found.
        final: The method of a stream's helper that returns the whole answer.
        history: The dialog's field, and a dialog as agents send it, whose call has an id of another form.
        extras: Fields that agents send with every request.
        more: Fields of every request here.
    """

    endpoint: str
    functions: Any
    form: tuple[str, Callable[[Any], Any]]
    later: Any = None
    refused: Any = None
    final: str = ""
    history: tuple[str, list[Any]] = ("messages", [])
    extras: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def body(
        self,
        *,
        tools: Any = CHAT_TOOLS,
        choice: Any = LEFT_OUT,
        messages: Any = QUESTION,
        native: Any = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """A request in the library's words; ``native`` are further fields, in its words already."""
        made = endpoints.body(self.endpoint, Row("", tools, choice, fields, messages), stream=False, max_tokens=600)
        return {key: made[key] for key in made.keys() - {"seed", "temperature", "stream"}} | self.more | (native or {})

    def ask(self, *, stream: bool = False, **fields: Any) -> Seen:
        found = self.functions.create(**self.body(**fields), **({"stream": True} if stream else {}))
        return self.read(found, stream=stream)

    def read(self, found: Any, *, stream: bool = False) -> Seen:
        (seen,) = streamed(self.endpoint, [*map(_dumped, found)]) if stream else whole(self.endpoint, _dumped(found))
        return seen

    def parse(self, **fields: Any) -> tuple[Seen, Any]:
        """An answer, and the report that the library parsed it into."""
        name, parsed = self.form
        found = self.functions.parse(**self.body(**fields), **{name: Weather})
        return self.read(found), parsed(found)

    def helped(self, *, is_parsed: bool = False, **fields: Any) -> tuple[set[str], Seen, Any]:
        """The kinds of events of the library's helper for streams, and the answer that it puts together."""
        name, parsed = self.form
        with self.functions.stream(**self.body(**fields), **({name: Weather} if is_parsed else {})) as stream:
            kinds = {event.type for event in stream}
            found = getattr(stream, self.final)()
        return kinds, self.read(found), parsed(found) if is_parsed else None

    def check(self, seen: Seen, first: int = 0) -> list[str]:
        """Check an answer's calls and return the tools' names."""
        assert "<|tool_call" not in seen.content
        if reason := CALLED.get(self.endpoint):
            assert (seen.reason == reason) == bool(seen.calls), seen
        return check_calls(seen.calls, first)

    def turn(self, found: Any, content: Any) -> list[Any]:
        """The library's own answer as a part of a dialog, with a result of each call."""
        ids = [call_id for call_id, _, _ in self.read(found).calls]
        if self.endpoint == "chat":
            message = found.choices[0].message
            return [message, *({"role": "tool", "tool_call_id": call_id, "content": content} for call_id in ids)]
        if self.endpoint == "responses":
            results = ({"type": "function_call_output", "call_id": call_id, "output": content} for call_id in ids)
            return [*found.output, *results]
        result = {"type": "tool_result", "content": content, "is_error": not content}
        results = (result | {"tool_use_id": call_id} for call_id in ids)
        return [{"role": "assistant", "content": found.content}, {"role": "user", "content": [*results]}]


def _dumped(found: Any) -> Any:
    return found if isinstance(found, dict) else found.model_dump()


def client(url: str) -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=TIMEOUT)


def async_client(url: str) -> Any:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=TIMEOUT)


def chat(url: str, **more: Any) -> Api:
    call = {"id": "call_abc", "type": "function", "function": {"name": "get_time", "arguments": '{"zone": "UTC"}'}}
    return Api(
        "chat", client(url).chat.completions, ("response_format", lambda found: found.choices[0].message.parsed),
        async_client(url).chat.completions, openai.BadRequestError, "get_final_completion",
        ("messages", [
            {"role": "developer", "content": "Be brief."},
            *QUESTION,
            {"role": "assistant", "content": "", "tool_calls": [call], "refusal": None},
            {"role": "tool", "tool_call_id": "call_abc", "content": "noon"},
        ]),
        {"max_completion_tokens": 500, "temperature": 0.7, "top_p": 0.9, "presence_penalty": 0.1, "frequency_penalty": 0.1,
         "user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "reasoning_effort": "low",
         "verbosity": "low", "stop": ["\n\nHuman:"], "prompt_cache_key": "k", "safety_identifier": "s"},
        more,
    )  # fmt: skip


def responses(url: str, **more: Any) -> Api:
    """The items have ids of another form, and results in parts."""
    return Api(
        "responses", client(url).responses, ("text_format", lambda found: found.output_parsed),
        async_client(url).responses, openai.BadRequestError, "get_final_response",
        ("input", [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
            {"role": "user", "content": "How warm is it?"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": None},
            {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get_time", "arguments": '{"zone": "UTC"}', "status": "completed"},
            {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "noon"}]},
            {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "Noon.", "annotations": []}]},
            {"role": "user", "content": "And the weather?"},
        ]),
        {"reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content"], "store": False,
         "metadata": {"a": "b"}, "temperature": 0.7, "top_p": 0.9, "truncation": "disabled", "prompt_cache_key": "k",
         "text": {"verbosity": "low"}, "user": "u"},
        more,
    )  # fmt: skip


def messages(url: str, **more: Any) -> Api:
    options: Any = {"base_url": url, "api_key": KEY, "max_retries": 0, "timeout": TIMEOUT}
    return Api(
        "messages", anthropic.Anthropic(**options).messages, ("output_format", lambda found: found.parsed_output),
        anthropic.AsyncAnthropic(**options).messages, anthropic.BadRequestError, "get_final_message",
        ("messages", [
            *QUESTION,
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "toolu_01A", "name": "get_time", "input": {"zone": "UTC"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_01A"},
                {"type": "text", "text": "And the weather?", "cache_control": {"type": "ephemeral"}},
            ]},
        ]),
        {"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
         "metadata": {"user_id": "u"}, "stop_sequences": ["\n\nHuman:"],
         "extra_headers": {"anthropic-beta": "interleaved-thinking-2025-05-14"}, "extra_query": {"beta": "true"},
         "extra_body": {"temperature": 1, "top_k": 40}},
        more,
    )  # fmt: skip
