"""Reading a spec's own JSON: what it wrote itself is taken apart without decoding any schema in it."""

from typing import Any, Literal

import msgspec


class _Function(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    parameters: msgspec.Raw
    strict: bool | None = None


class _Tool(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["function"]
    function: _Function


class _Spec(msgspec.Struct, forbid_unknown_fields=True):
    tools: list[_Tool]
    tool_choice: str
    parallel_tool_calls: bool
    first_index: int
    thinking: bool
    engine: str | None = None


_DECODER = msgspec.json.Decoder(_Spec)


def undecoded(text: str | bytes) -> dict[str, Any] | None:
    """A request body whose schemas are still text (``msgspec.Raw``); None for what has another form than a spec's own.

    Args:
        text: JSON.
    """
    try:
        spec = _DECODER.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
    functions = [tool.function for tool in spec.tools]
    if not all(bytes(function.parameters).startswith(b"{") for function in functions):
        return None
    body: dict[str, Any] = {name: getattr(spec, name) for name in _Spec.__struct_fields__}
    body["tools"] = [{"function": {name: getattr(f, name) for name in _Function.__struct_fields__}} for f in functions]
    return body
