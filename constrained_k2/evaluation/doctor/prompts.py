"""What can be read off a prompt: pure functions over its pieces."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

SECTION, CALL, ARGUMENTS = "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"
CALL_END, TURN_END = "<|tool_call_end|>", "<|im_end|>"
ASSISTANT, MIDDLE, SYSTEM = "<|im_assistant|>", "<|im_middle|>", "<|im_system|>"
THINK, THINK_END = "<think>", "</think>"

_PRINTED_LIST = re.compile(r"\[\{['\"]type['\"]: ?['\"]text['\"]")
_OLD_DECLARATION = re.compile(r"\A\s*# Tools\s*\[")
_RESULT = re.compile(r"\A## Return of (?P<id>[^\n]*)\n(?P<blanks>[ \t]*)")


@dataclass(frozen=True, slots=True)
class Piece:
    """A special token, or the text between two.

    Attributes:
        text: Its text.
        special: Whether it is one special token.
    """

    text: str
    special: bool = False


Prompt = Sequence[Piece]
"""The pieces of a prompt, or of a completion, in order."""


def has_generation_prompt(prompt: Prompt) -> bool:
    """Whether the prompt ends with an opened assistant's turn, in which the reasoning may be opened or closed too."""
    pieces = list(prompt)
    while pieces and pieces[-1].special and pieces[-1].text in {THINK, THINK_END}:
        del pieces[-1]
    return pieces[-3:] == [Piece(ASSISTANT, special=True), Piece("assistant"), Piece(MIDDLE, special=True)]


def opens_reasoning(prompt: Prompt) -> bool:
    """Whether the model goes on inside the reasoning."""
    return bool(prompt) and prompt[-1] == Piece(THINK, special=True)


def printed_list(prompt: Prompt) -> str:
    """A message's content printed as a Python list, as older templates do with OpenAI's parts; empty if there is none.

    What stands in the declaration of tools, which is JSON, is none.
    """
    for _, text in _messages(prompt):
        if found := _PRINTED_LIST.search(text):
            return text[found.start() : found.start() + 60]
    return ""


def text_before_calls(prompt: Prompt) -> list[str]:
    """For every section of calls: the text between it and the header of its turn, or the end of its reasoning."""
    found, text = [], ""
    for piece in prompt:
        if piece.special and piece.text == SECTION:
            found.append(text)
        if piece.special and piece.text in {MIDDLE, THINK_END}:
            text = ""
        elif not piece.special:
            text += piece.text
    return found


def between(prompt: Prompt, begin: str, end: str) -> list[str]:
    """The texts from every ``begin`` marker to the ``end`` marker behind it."""
    found: list[str] = []
    text: str | None = None
    for piece in prompt:
        if piece.special and piece.text == begin:
            text = ""
        elif piece.special and piece.text == end and text is not None:
            found.append(text)
            text = None
        elif text is not None:
            text += piece.text
    return found


def call_ids(prompt: Prompt) -> list[str]:
    """The ids of the calls, as they stand there."""
    return between(prompt, CALL, ARGUMENTS)


def result_ids(prompt: Prompt) -> list[str]:
    """The ids under which results are given, as they stand there."""
    return [found["id"] for _, text in _messages(prompt) if (found := _RESULT.match(text))]


def blanks_before_results(prompt: Prompt) -> bool:
    """Whether a result is indented under its headline: Kimi K2's templates of before the repair of October 2025."""
    return any(found["blanks"] for _, text in _messages(prompt) if (found := _RESULT.match(text)))


def declaration(prompt: Prompt) -> str | None:
    """The text by which the tools are declared; None if none are."""
    return next((text for name, text in _messages(prompt, declarations=True) if name == "tool_declare"), None)


def has_old_headline(text: str) -> bool:
    """Whether a :func:`declaration` in JSON has a headline, as in Kimi K2's templates of before October 2025."""
    return _OLD_DECLARATION.match(text) is not None


def undue_keys(text: str) -> list[str]:
    """The keys of declared tools that are no part of Kimi's format, such as ``strict``.

    Args:
        text: A :func:`declaration`: JSON, or TypeScript (of which no key but ``strict`` is looked for).
    """
    try:
        tools: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ["strict"] if re.search(r"\bstrict\b", text) else []
    keys: set[str] = set()
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            keys |= tool.keys() - {"type", "function"}
            function = tool.get("function")
            keys |= function.keys() - {"name", "description", "parameters"} if isinstance(function, dict) else set()
    return sorted(keys)


def _messages(prompt: Prompt, *, declarations: bool = False) -> Iterator[tuple[str, str]]:
    """``(name in the header, text up to the next marker)`` of every message."""
    pieces = list(prompt)
    for number, piece in enumerate(pieces):
        if piece.special and piece.text == MIDDLE and number:
            name = pieces[number - 1].text
            behind = pieces[number + 1] if number + 1 < len(pieces) else Piece("")
            if declarations or name != "tool_declare":
                yield name, "" if behind.special else behind.text
