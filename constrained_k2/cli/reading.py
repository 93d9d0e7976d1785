"""Reads files, standard input, tools and numbers for all verbs."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from constrained_k2.errors import InvalidRequest, excerpt
from constrained_k2.formats import FORMATS
from constrained_k2.formats.base import WireFormat
from constrained_k2.request.tools import declared_schema

FORMS = "a list of tools of OpenAI, Anthropic or MCP, a request with tools, or an MCP server's answer to tools/list"
WIRE_FORMATS: dict[str, WireFormat] = {known.name.lower().replace(" ", "-"): known for known in FORMATS}
"""Name on the command line -> wire format."""


def read_text(path: str) -> str:
    """Read a file, or standard input for ``-``."""
    try:
        if path != "-":
            return Path(path).read_text(encoding="utf-8")
        text = sys.stdin.read()
        text.encode()  # standard input may pass bytes that are not UTF-8 as lone surrogates
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(f"cannot be read: {error}", "standard input" if path == "-" else path) from error
    return text


def read_json(path: str) -> Any:
    """Read JSON from a file, or from standard input for ``-``."""
    return decode_json(read_text(path), "standard input" if path == "-" else path)


def decode_json(text: str, location: str) -> Any:
    """Decode JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"is not JSON: {error}", location) from error


def named_schemas(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and schema of each tool in a list, a request or an MCP server's answer; None for no schema."""
    for tool in named_tools(document):
        yield tool.get("function", tool)["name"], declared_schema(tool)[0]


def named_tools(document: Any) -> Iterator[dict[str, Any]]:
    """Yield the tools of a list, a request or an MCP server's answer; of a namespace, the functions by vLLM's names."""
    tools = tools_in(document)
    if tools is None:
        raise InvalidRequest("holds no tools", "tools", f"Give {FORMS}")
    for number, tool in enumerate(tools):
        if isinstance(tool, dict) and tool.get("type") == "namespace" and isinstance(tool.get("tools"), list):
            functions = [
                inner for inner in tool["tools"] if not isinstance(inner, dict) or inner.get("type") == "function"
            ]
            for inner in named_tools(functions):
                yield inner | {"name": f"{tool.get('name')}__{inner.get('function', inner)['name']}"}
            continue
        if isinstance(tool, dict) and tool.get("type") == "custom" and isinstance(tool.get("custom"), dict):
            tool = {"type": "custom", **tool["custom"]}  # noqa: PLW2901 - as chat completions nest it
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest('missing "name"', f"tools[{number}]", "Expected an OpenAI, Anthropic or MCP tool")
        if (kind := tool.get("type", "function")) not in ("function", "custom"):
            problem = f"the type is {excerpt(kind)}: only functions have arguments with a schema"
            raise InvalidRequest(problem, f"tools[{number}].type", "Leave the tool out")
        yield tool


def tools_in(document: Any) -> list[Any] | None:
    """The list of tools that a document is or holds; None if there is none."""
    for holder in (document, document.get("result")) if isinstance(document, dict) else ():
        if isinstance(holder, dict) and isinstance(holder.get("tools"), list):
            return list(holder["tools"])
    return document if isinstance(document, list) else None


def natural(text: str) -> int:
    """Read an integer of at least 0 for argparse."""
    if (number := int(text)) < 0:
        raise argparse.ArgumentTypeError("must be at least 0")
    return number


def positive(text: str) -> int:
    """Read an integer of at least 1 for argparse."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number
