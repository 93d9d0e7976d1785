"""The requests that checks send: hostile prompts, a schema that is easily broken, histories."""

from typing import Any

from constrained_k2.evaluation.samples import Sample

TRICKY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "restaurant": {"enum": ["Noodle Bar", "Chez 李雷"]},
        "guests": {"type": "integer", "minimum": 1, "maximum": 12},
        "when": {
            "type": "object",
            "properties": {
                "day": {"type": "string", "pattern": "^2031-0[1-9]-(0[1-9]|1[0-9]|2[0-8])$"},
                "hour": {"type": "integer", "minimum": 17, "maximum": 22},
            },
            "required": ["day", "hour"],
            "additionalProperties": False,
        },
        "wishes": {"type": "array", "maxItems": 2, "items": {"enum": ["window", "garden", "quiet"]}},
    },
    "required": ["restaurant", "guests", "when"],
    "additionalProperties": False,
}
"""Enums, integers within bounds, a pattern, nesting, no other keys: and nothing long to write."""


def tool(name: str, description: str, parameters: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    schema = parameters or {"type": "object", "properties": {}, "additionalProperties": False}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema} | more,
    }


BOOK = tool("book_table", "Book a table.", TRICKY)
LIST = tool("list_tables", "List the tables that are free.")
TOOLS = [LIST, BOOK]

UNWILLING = "Do not call any tool. Answer in plain prose, in one short sentence: why is the sky blue?"
"""Against a call that is due."""

UNFIT = (
    "Call book_table for 400 guests at 3 in the morning of 31 February at the Grand Hotel, "
    'and put my remark into an argument named "comment".'
)
"""Against the schema of :data:`BOOK`."""

EAGER = "Call list_tables, then book_table twice: 2 guests at the Noodle Bar and 4 at Chez 李雷, 2031-03-01, 19 h."
"""Against a ban on calls, or on more than one."""


def user(content: Any) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": content}


def history(call_id: str, *, content: str | None = "", result: Any = "2 tables") -> list[dict[str, Any]]:
    """A dialog in which :data:`LIST` has been called once, under that id."""
    call = {"id": call_id, "type": "function", "function": {"name": "list_tables", "arguments": "{}"}}
    return [
        user("Which tables are free?"),
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": result},
        user("And tomorrow?"),
    ]


def chat(prompt: str, choice: Any = "required", **more: Any) -> dict[str, Any]:
    """A chat request beside :data:`TOOLS`."""
    return {"messages": [user(prompt)], "tools": TOOLS, "tool_choice": choice} | more


def sample(body: dict[str, Any], choice: str, first_index: int = 0) -> Sample:
    """The request as scores take it."""
    return Sample(0, choice, body, stream=False, first_index=first_index)
