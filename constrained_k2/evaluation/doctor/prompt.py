"""Reads a rendered prompt: pure functions over its special tokens and the text between them."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from constrained_k2.formats import kimi_k3 as k3
from constrained_k2.formats.kimi_k2 import ARGUMENT_BEGIN, CALL_BEGIN, MIDDLE, THINK_BEGIN

_PRINTED_LIST = re.compile(r"\[\{['\"]type['\"]: ?['\"]text['\"].{0,45}", re.DOTALL)
_RESULT = re.compile(r"\A## Return of (?P<id>[^\n]*)\n(?P<blanks>[ \t]*)")


class Piece(NamedTuple):
    """A special token, or the text between two of them."""

    text: str
    special: bool = False


Prompt = Sequence[Piece]  # the pieces of a prompt, or of a completion, in order


def opens_reasoning(prompt: Prompt) -> bool:
    """True if the prompt ends in the opening of the reasoning, so that the answer begins inside it."""
    tag = [(k3.OPEN, True), (k3.THINK, False), (k3.SEPARATOR, True)]
    return list(prompt[-1:]) == [(THINK_BEGIN, True)] or list(prompt[-3:]) == tag


def stray(prompt: Prompt) -> int:
    """The number of special tokens of tags that are not part of a tag; without those at the end, which may be cut."""
    kinds = "".join(
        "o" if each.text in {k3.OPEN, k3.CLOSE} else "s" if each.text == k3.SEPARATOR else "x" if each.special else "t"
        for each in (each if each.special else Piece("") for each in prompt)
    )
    left = kinds.replace("ots", "x")[:-2]
    return left.count("o") + left.count("s")


def printed_list(prompt: Prompt) -> str:
    """The beginning of a content printed as a Python list, as older templates print OpenAI's parts; or empty."""
    texts = (text for name, text in _messages(prompt) if name != "tool_declare")
    return next((found[0] for found in map(_PRINTED_LIST.search, texts) if found), "")


def between(prompt: Prompt, begin: str, end: str) -> list[str]:
    """The texts between each ``begin`` marker and the next ``end`` marker."""
    found, text = list[str](), None
    for piece in prompt:
        if piece == (begin, True):
            text = ""
        elif piece == (end, True) and text is not None:
            found.append(text)
            text = None
        elif text is not None:
            text += piece.text
    return found


def ids_in(prompt: Prompt) -> tuple[list[str], list[str]]:
    """The ids of the calls and of the results in a prompt."""
    calls = [call_id.strip() for call_id in between(prompt, CALL_BEGIN, ARGUMENT_BEGIN)]
    return calls, [found["id"] for found in results(prompt)]


def results(prompt: Prompt) -> list[re.Match[str]]:
    """The headlines of the results: ``id``, and ``blanks`` that indent the text below."""
    texts = (text for name, text in _messages(prompt) if name != "tool_declare")
    return [found for text in texts if (found := _RESULT.match(text))]


def declaration(prompt: Prompt) -> str | None:
    """The text that declares the tools; None if there is none."""
    return next((text for name, text in _messages(prompt) if name == "tool_declare"), None)


def undue_keys(text: str) -> list[str]:
    """The keys of a :func:`declaration` outside Kimi's format; TypeScript is searched for ``strict`` only."""
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


def _messages(prompt: Prompt) -> Iterator[tuple[str, str]]:
    """``(name in the header, text up to the next marker)`` of every message."""
    for header, middle, text in zip(prompt, prompt[1:], [*prompt[2:], Piece("")], strict=False):
        if middle.special and middle.text == MIDDLE:
            yield header.text, "" if text.special else text.text
