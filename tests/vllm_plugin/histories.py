"""Histories in the forms that clients send, and their prompts: the rows of ``histories.json``, each ``[HISTORY, PROMPT]``.

In a prompt U|, A| and S| open turns, > ends a header, $ a turn; ``{{«ID→ARGUMENTS»}}`` is a section with a call, and ~ Kimi's
default system turn. The prompt null is a request that is refused. Items are those of /v1/responses, blocks those of
/v1/messages; reasoning and blocks are rendered with K2.5's template, which shows reasoning, the others with K2-Instruct's.
"""

from typing import Any

from tests.kit.data import table

Table = dict[str, tuple[list[Any], str | None]]
_TABLES: dict[str, Table] = table(__file__)
ROLES, CONTENTS, CALLS, REASONING, ITEMS, REASONING_ITEMS, BLOCKS = _TABLES.values()

GO = {"role": "user", "content": "go"}
THOUGHT = {"type": "thinking", "thinking": "hm"}
MESSAGE = {"type": "message", "role": "assistant"}


def said(content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def call(given: Any = "c1", name: Any = "f", arguments: Any = '{"x":1}') -> dict[str, Any]:
    return {"id": given, "type": "function", "function": {"name": name, "arguments": arguments}}


def back(content: Any = "r", given: Any = "c1", **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": given, "content": content, **fields}


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


def output(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text}


_LONG_TYPE = {"type": "image", "data": "", "mimeType": "a" * 9000}
CONTENTS["result, MCP's image with a long type"] = (
    [GO, said(tool_calls=[call()]), back([_LONG_TYPE])],
    '~U|user>go$A|assistant>{{«functions.f:0→{"x":1}»}}$S|tool>## Return of functions.f:0\n[image]$A|assistant>',
)
