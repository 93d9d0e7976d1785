"""Requests as vLLM reads them, and what a composed parser makes of them."""

from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

from constrained_k2.vllm_plugin.api_server.middleware import rewritten

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def chat(**fields: Any) -> ChatCompletionRequest:
    body = {"messages": [{"role": "user", "content": "x"}], "model": "m", "tools": [TOOL]} | fields
    return ChatCompletionRequest.model_validate(rewritten(body, "messages"))


def make(parser_class: Any, tokenizer: Any, request: Any) -> Any:
    return parser_class(tokenizer, request.tools)


def adjusted(parser_class: Any, tokenizer: Any, request: Any) -> Any:
    return make(parser_class, tokenizer, request).adjust_request(request)
