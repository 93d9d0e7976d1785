"""Requests as vLLM reads them, and what a parser that vLLM composes with ours makes of them."""

from collections.abc import Sequence
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.parser import ParserManager

from constrained_k2 import ToolCallSpec
from constrained_k2.vllm_plugin.api_server.middleware import rewritten
from tests.kit.answers import Call, Seen, join_calls
from tests.kit.tools import tool
from tests.vllm_plugin.patched import patch_vllm

TOOL = tool("f")
SIZES = (1, 2, 5, 1000)
"""Numbers of tokens that a piece of a stream has."""

Shown = tuple[str, str, list[Call]]
"""Reasoning, content, and the calls' ids, names and arguments."""


def chat(**fields: Any) -> ChatCompletionRequest:
    body = {"messages": [{"role": "user", "content": "x"}], "model": "m", "tools": [TOOL]} | fields
    return ChatCompletionRequest.model_validate(rewritten(body, "messages"))


def responses(**fields: Any) -> ResponsesRequest:
    return ResponsesRequest.model_validate(rewritten({"input": "x", "model": "m"} | fields, "input"))


def spec_of(request: Any) -> ToolCallSpec:
    return ToolCallSpec.from_json(request.vllm_xargs["constrained_k2"])


class Composed:
    """Our tool parser as vLLM composes it for a tokenizer, with a reasoning parser or without."""

    def __init__(self, tokenizer: Any, reasoning: str | None = None) -> None:
        patch_vllm()
        self.tokenizer, self.thinks = tokenizer, reasoning is not None
        self.parser_class: Any = ParserManager.get_parser(
            tool_parser_name="kimi_k2_constrained", reasoning_parser_name=reasoning, enable_auto_tools=True,
            tokenizer=tokenizer,
        )  # fmt: skip

    def make(self, request: Any) -> Any:
        return self.parser_class(self.tokenizer, request.tools)

    def adjusted(self, request: Any) -> Any:
        return self.make(request).adjust_request(request)

    def chat(self, **fields: Any) -> Any:
        return self.adjusted(chat(**fields))

    def whole(self, request: Any, ids: list[int], text: str = "", prompt: list[int] | None = None) -> Shown:
        """The parts of an answer that a client is shown, read as a whole."""
        parser = self.make(request)
        if prompt is not None:
            parser.set_prompt_token_ids(prompt)
        reasoning, content, calls = parser.parse(text, request, True, ids)
        return reasoning or "", content or "", [(call.id, call.name, call.arguments) for call in calls or []]

    def stream(
        self, request: Any, pieces: Sequence[tuple[list[int], str]], prompt: Sequence[int] = (1,)
    ) -> tuple[Shown, Any]:
        """The same of a stream of pieces, and the stream's parser."""
        parser, seen, parts = self.make(request), Seen(), list[dict[str, Any]]()
        for number, (ids, text) in enumerate(pieces):
            delta = parser.parse_delta(text, ids, request, list(prompt), finished=number == len(pieces) - 1)
            if delta is not None:
                seen.reasoning += delta.reasoning or ""
                seen.content += delta.content or ""
                parts += (part.model_dump() for part in delta.tool_calls)
        return (seen.reasoning, seen.content, join_calls(parts)), parser

    def pieces(self, ids: list[int], size: int, vocabulary: Any = None) -> list[tuple[list[int], str]]:
        """Tokens by the piece, with their texts if there is a vocabulary."""
        parts = [ids[start : start + size] for start in range(0, len(ids), size)]
        return [(part, "" if vocabulary is None else vocabulary.decode(part)) for part in parts]
