"""The requests of the checks: hostile prompts, a schema that is easily violated, histories."""

from collections.abc import Collection
from typing import Any


def tool(name: str, description: str, parameters: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """An OpenAI tool, by default without parameters; ``more`` are fields of its function, such as ``strict``."""
    function = {"name": name, "description": description, "parameters": parameters or closed()}
    return {"type": "function", "function": function | more}


def closed(optional: Collection[str] = (), **properties: Any) -> dict[str, Any]:
    """An object's schema without other properties; all but the ``optional`` ones are required."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


# Enums, bounded integers, a pattern, nesting, a closed object; and every instance is short.
TRICKY = closed(
    {"wishes"},
    restaurant={"enum": ["Noodle Bar", "Chez 李雷"]},
    guests={"type": "integer", "minimum": 1, "maximum": 12},
    when=closed(
        day={"type": "string", "pattern": "^2031-0[1-9]-(0[1-9]|1[0-9]|2[0-8])$"},
        hour={"type": "integer", "minimum": 17, "maximum": 22},
    ),
    wishes={"type": "array", "maxItems": 2, "items": {"enum": ["window", "garden", "quiet"]}},
)
BOOK = tool("book_table", "Book a table.", TRICKY)
DOTTED = [tool("mail.send", "Send the mail."), tool("mail.draft.send", "Send the draft.")]
TOOLS = [tool("list_tables", "List the tables that are free."), BOOK]
# Prompts against a required call; against the schema of book_table; against a ban on calls, or on more than one.
UNWILLING = "Do not call any tool. Answer in plain prose, in one short sentence: why is the sky blue?"
UNFIT = (
    "Call book_table for 400 guests at 3 in the morning of 31 February at the Grand Hotel, "
    'and put my remark into an argument named "comment".'
)
EAGER = "Call list_tables, then book_table twice: 2 guests at the Noodle Bar and 4 at Chez 李雷, 2031-03-01, 19 h."


def user(content: Any) -> dict[str, Any]:
    """A message of the user."""
    return {"role": "user", "content": content}


def named(name: str) -> dict[str, Any]:
    """The ``tool_choice`` of one function."""
    return {"type": "function", "function": {"name": name}}


def history(call_id: str, *, content: str | None = "", result: Any = "2 tables") -> list[dict[str, Any]]:
    """A dialog of four messages, with a call of ``list_tables`` and its result."""
    call = {"id": call_id, "type": "function", "function": {"name": "list_tables", "arguments": "{}"}}
    return [
        user("Which tables are free?"),
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": result},
        user("And tomorrow?"),
    ]


def chat(prompt: str, choice: Any = "required", **more: Any) -> dict[str, Any]:
    """A request with both tools; ``more`` are fields of the body."""
    return {"messages": [user(prompt)], "tools": TOOLS, "tool_choice": choice} | more
