"""Kimi K3's tokenizer class: Kimi K2's vocabulary, other special tokens, prompts rendered in code.

This file is copied into model directories beside `tokenization_kimi.py` and loaded from there, so it must not import
this package. It behaves like the class in production checkpoints, which has no chat template: `apply_chat_template`
encodes a dialog piece by piece, so that no text of a client becomes a special token. It follows the older revision of
the checkpoint's encoder, which parses the JSON text of arguments and writes the values again.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from .tokenization_kimi import TikTokenTokenizer

Pieces = Iterator[tuple[str, bool]]  # text, and whether it is a special token

_EFFORT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`."
)
_CHOICES = {"required": "You MUST call tools", "none": "You MUST NOT call any tools"}
_RAW_JSON = "Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting."
_TYPES = {str: "string", bool: "boolean", int: "number", float: "number", type(None): "null", dict: "object"}


class KimiK3Tokenizer(TikTokenTokenizer):
    """Byte-level BPE with Kimi K3's special tokens and prompts."""

    def apply_chat_template(self, conversation: Any, tools: Any = None, *_args: Any, **kwargs: Any) -> Any:
        """Render a dialog as token ids, or as text without `tokenize`; thinking is on unless `thinking` is false."""
        pieces = list(_prompt(conversation, tools, kwargs))
        if not kwargs.get("tokenize", True):
            return "".join(text for text, _ in pieces)
        ids: list[int] = []
        for text, is_special in pieces:
            ids += [self.encoder[text]] if is_special else self.model.encode_ordinary(text)
        return {"input_ids": ids, "attention_mask": [1] * len(ids)} if kwargs.get("return_dict") else ids


def _prompt(conversation: Any, tools: Any, options: Mapping[str, Any]) -> Pieces:
    thinking = options.get("thinking", True)
    if tools:
        yield from _system("tool-declare", "# Tools\nHere are the available tools, described in JSONSchema.\n\n", tools)
    effort = options.get("thinking_effort", "max")
    if thinking and effort is not None:
        if effort not in ("low", "high", "max"):
            raise ValueError(f"unknown thinking_effort {effort!r}")
        yield from _system("thinking-effort", _EFFORT.format(effort))
    yield from _dialog(conversation, thinking=thinking)
    choice = options.get("tool_choice")
    if isinstance(choice, str) and choice in _CHOICES:
        body = f"The system is invoked with `tool_choice={choice}`.\n{_CHOICES[choice]} in the next message."
        yield from _system("tool-choice", body)
    form = options.get("response_format") or {}
    if form.get("type") in ("json_object", "json_schema"):
        body = f"The system is invoked with `response_format={form['type']}`.\n{_RAW_JSON}"
        if form["type"] == "json_object":
            yield from _system("response-format", body)
        else:
            schema = form["json_schema"].get("schema", form["json_schema"].get("json_schema", form["json_schema"]))
            body += "\nThe JSON data must match the following schema:\n"
            yield from _system("response-format", body, schema)
    if options.get("add_generation_prompt", True):
        yield from _open("message", role="assistant")
        yield from _open("think" if thinking else "response")


def _dialog(messages: Any, *, thinking: bool) -> Pieces:
    calls: list[Any] = []  # of the last assistant message
    results = 0  # since then
    for is_result, run in groupby(messages, key=lambda message: message["role"] == "tool"):
        for message in _in_order(list(run), calls) if is_result else run:
            role, name = message["role"], {"name": message["name"]} if message.get("name") else {}
            if role == "system" and message.get("tools"):
                body = "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
                body += "You have access to all existing and extended tools.\n"
                body += "Here are the specs for the extended tools.\n\n"
                yield from _system("tool-declare", body, message["tools"])
                continue
            if role == "tool":
                results += 1
                function = message.get("tool") or message.get("name") or calls[results - 1]["function"]["name"]
                yield from _open("message", role=role, tool=function, index=str(results))
            elif role == "assistant":
                calls, results = list(message.get("tool_calls") or ()), 0
                yield from _open("message", role=role, **name)
                yield from _assistant(message, calls, thinking=thinking)
            else:
                yield from _open("message", role=role, **name)
            if role != "assistant":
                yield from _content(message.get("content"))
            yield from _close("message")
            yield "<|end_of_msg|>", True


def _in_order(run: list[Any], calls: list[Any]) -> list[Any]:
    """Sort results like their calls, under the calls' names, unless one of them matches no call."""
    positions: dict[str, int] = {}
    for position, call in enumerate(calls):
        positions.setdefault(str(call.get("id")), position)
    found = [positions.get(str(message.get("tool_call_id"))) for message in run]
    if None in found:
        return run
    pairs = sorted(zip(found, run, strict=True), key=lambda pair: pair[0] or 0)
    return [{**message, "tool": calls[position or 0]["function"]["name"]} for position, message in pairs]


def _assistant(message: Any, calls: list[Any], *, thinking: bool) -> Pieces:
    if thinking:
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        yield from _open("think")
        yield from _content(reasoning if reasoning.strip() else "")
        yield from _close("think")
    yield from _open("response")
    yield from _content(message.get("content"))
    yield from _close("response")
    if not calls:
        return
    yield from _open("tools")
    for index, call in enumerate(calls, 1):
        yield from _open("call", tool=call["function"]["name"], index=str(index))
        yield from _arguments(call["function"].get("arguments"))
        yield from _close("call")
    yield from _close("tools")


def _arguments(arguments: Any) -> Pieces:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            yield from _open("json", type="object")
            yield from _content(arguments)
            yield from _close("json")
            return
    for key, value in (arguments or {}).items():
        yield from _open("argument", key=key, type=_TYPES.get(type(value), "array"))
        yield from _content(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        yield from _close("argument")


def _system(kind: str, body: str, value: Any = None) -> Pieces:
    yield from _open("message", role="system", type=kind)
    if value is not None:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        body += f"```json\n{text}\n```"
    yield body, False
    yield from _close("message")
    yield "<|end_of_msg|>", True


def _content(content: Any) -> Pieces:
    parts = [content] if isinstance(content, str) else [part["text"] for part in content or ()]
    yield from ((part, False) for part in parts if part)


def _open(tag: str, **attributes: str) -> Pieces:
    yield "<|open|>", True
    yield tag, False
    for key, value in attributes.items():
        escaped = value.replace("&", "&amp;").replace('"', "&quot;")
        yield from ((text, False) for text in (f" {key}", '="', escaped, '"') if text)
    yield "<|sep|>", True


def _close(tag: str) -> Pieces:
    yield "<|close|>", True
    yield tag, False
    yield "<|sep|>", True
