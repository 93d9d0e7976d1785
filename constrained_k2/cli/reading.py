"""Files or standard input, tools and numbers, for all verbs."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from constrained_k2.errors import InvalidRequest


def read_text(path: str) -> str:
    """The text of a file, or of standard input for ``-``.

    Raises:
        InvalidRequest: It cannot be read.
    """
    try:
        if path != "-":
            return Path(path).read_text(encoding="utf-8")
        text = sys.stdin.read()
        text.encode()  # a terminal's locale may let bytes through that are no UTF-8, as lone surrogates
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(f"cannot be read: {error}", "standard input" if path == "-" else path) from error
    return text


def read_json(path: str) -> Any:
    """The JSON of a file, or of standard input for ``-``.

    Raises:
        InvalidRequest: It cannot be read, or is not JSON.
    """
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"is not JSON: {error}", "standard input" if path == "-" else path) from error


def named_schemas(tools: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Each tool's name and schema, in OpenAI's form or MCP's ``inputSchema``; None for a tool without a schema.

    Raises:
        InvalidRequest: An entry is no tool.
    """
    for number, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest("is no tool: it has no name", f"tools[{number}]", "Give OpenAI's or MCP's form")
        yield function["name"], function.get("parameters", function.get("inputSchema"))


def positive(text: str) -> int:
    """A whole number from 1, as an argument.

    Raises:
        ArgumentTypeError: It is less.
        ValueError: It is no whole number.
    """
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number
