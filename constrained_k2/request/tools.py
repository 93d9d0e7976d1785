"""Reads a request's tools: names, schemas and custom tools' grammars, within budgets."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Literal

import msgspec

from constrained_k2.errors import InvalidRequest, SchemaTooCostly, excerpt, kind_of_json
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.request.values import array_at, boolean_at, object_at
from constrained_k2.threads.interruptible import yield_gil

ANY_OBJECT = '{"type":"object"}'
"""The schema of a tool that declares no parameters: any JSON object."""

ONE_STRING = (
    '{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}'
)
"""The schema of a custom tool's arguments: vLLM shows the model such a tool as this function."""

SCHEMA_FIELDS = ("parameters", "input_schema", "inputSchema")
"""The fields of OpenAI's, Anthropic's and MCP's tools for the schema of the arguments."""

_IDS = ("$id", "id")  # the second one in draft 4

# Python reads 1e400 as infinity. In annotations that is harmless; the compiler refuses it in keywords.
_COMPACT = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of one request. Exceeding one raises :class:`SchemaTooCostly`."""

    tools: int = 1024
    tools_bytes: int = 4 << 20  # all parameter schemas together, as compact JSON
    name_bytes: int = 256  # one function name in UTF-8


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class TextFormat:
    """The grammar of a custom tool's input."""

    syntax: Literal["lark", "regex"]
    definition: str

    def to_tool(self, name: str) -> dict[str, Any]:
        """A tool, as in a request body, that :func:`read_tools` reads as this grammar; the inverse."""
        return {"type": "custom", "name": name, "format": {"type": "grammar", **asdict(self)}}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called. A custom tool is a function with one string argument."""

    name: str
    schema: str = ANY_OBJECT  # schema of the arguments, as compact JSON with the properties in the request's order
    strict: bool | None = None  # as in the request; see StrictPolicy
    format: TextFormat | None = None  # grammar of a custom tool's text; None for any text, and for functions

    @property
    def parameters(self) -> Any:
        """The schema as Python values, decoded at each access."""
        return json.loads(self.schema)


def read_tools(value: object, limits: Limits) -> tuple[Tool, ...]:
    """Read the ``tools`` of a request body, within its limits."""
    if value is None:
        return ()
    entries = array_at("tools", value)
    if len(entries) > limits.tools:
        problem = f"{len(entries)} tools exceed the limit of {limits.tools} a request"
        remedy = "Send only the tools that this turn may need"
        raise SchemaTooCostly(problem, "tools", remedy, "tools", limits.tools, len(entries))
    tools: dict[str, dict[Tool, int]] = {}  # name -> the distinct tools with that name, and their indexes
    size = 0
    for number, entry in enumerate(entries):
        yield_gil()
        tool = _read_tool(entry, f"tools[{number}]", limits)
        tools.setdefault(tool.name, {})[tool] = number
        size += len(tool.schema) + (0 if tool.format is None else len(tool.format.definition))
        if size > limits.tools_bytes:
            problem = f"the schemas up to this tool take {size} bytes, over the limit of {limits.tools_bytes} a request"
            remedy = "Send fewer tools or smaller schemas"
            raise SchemaTooCostly(problem, f"tools[{number}]", remedy, "tools_bytes", limits.tools_bytes, size)
    return tuple(next(iter(found)) if len(found) == 1 else _either(found) for found in tools.values())


def _either(tools: Mapping[Tool, int]) -> Tool:
    """Merge tools of the same name, which vLLM accepts: arguments have to satisfy at least one of the schemas."""
    if any(tool.format for tool in tools):
        problem = "another tool has this name, and a tool whose format is a grammar shares it with none"
        raise InvalidRequest(problem, f"tools[{max(tools.values())}].name", "Rename one of them")
    schemas = dict.fromkeys(tool.schema for tool in tools)
    strict = {tool.strict for tool in tools}
    try:
        text = next(iter(schemas)) if len(schemas) == 1 else _COMPACT.encode({"anyOf": _resources(schemas)})
    except (ValueError, RecursionError) as error:  # schemas that msgspec did not decode may be anything
        raise InvalidRequest(f"the schema cannot be read: {error}", f"tools[{max(tools.values())}]") from error
    return Tool(next(iter(tools)).name, text, True if True in strict else None if None in strict else False)


def _resources(schemas: Iterable[str]) -> list[dict[str, Any]]:
    """Decode schemas as schema resources, with an ``$id`` each, so that their references resolve inside them.

    An ``$id`` of the client's stays unless several schemas have it: a reference would then resolve in the wrong one.
    """
    decoded: list[dict[str, Any]] = [json.loads(schema) for schema in schemas]
    if not all(isinstance(schema, dict) for schema in decoded):
        raise ValueError("it is not a JSON object")
    count = Counter(schema[name] for schema in decoded for name in _IDS if isinstance(schema.get(name), str))
    shared = [given for given, number in count.items() if number > 1]
    return [
        {"$id": f"urn:sha256:{sha256(text.encode(errors='backslashreplace')).hexdigest()}"}
        | {name: value for name, value in schema.items() if name not in _IDS or value not in shared}
        for text, schema in zip(schemas, decoded, strict=True)
    ]


def _read_tool(entry: object, location: str, limits: Limits) -> Tool:
    tool = function = object_at(location, entry)
    kind = function.get("type", "function")
    if kind not in ("function", "custom"):
        problem = f"the type is {excerpt(kind)}; only 'function' and 'custom' tools can be constrained"
        raise InvalidRequest(problem, f"{location}.type")
    if kind in function:  # the responses endpoint has no inner object
        location = f"{location}.{kind}"
        function = object_at(location, function[kind])
    name = function.get("name")
    if not isinstance(name, str):
        raise InvalidRequest(f"must be a string, not {kind_of_json(name)}", f"{location}.name")
    if problem := KIMI_K2.name_problem(name):
        raise InvalidRequest(f"the name {excerpt(name)} {problem}", f"{location}.name", "Rename the function")
    if (length := len(name.encode())) > limits.name_bytes:
        problem = f"the name {name[:40]!r}… takes {length} bytes, over the limit of {limits.name_bytes}"
        where, remedy = f"{location}.name", "Rename the function"
        raise SchemaTooCostly(problem, where, remedy, "name_bytes", limits.name_bytes, length)
    if kind == "custom":
        return Tool(name, ONE_STRING, format=read_text_format(function.get("format"), f"{location}.format"))
    strict = boolean_at(f"{location}.strict", function.get("strict"))
    schema, field = declared_schema(tool)
    return Tool(name, schema_text(schema, f"{location}.{field}"), strict)


def read_text_format(value: object, location: str) -> TextFormat | None:
    """Read the ``format`` of a custom tool; None for free text."""
    if value is None:
        return None
    given = object_at(location, value)
    if given.get("type") == "text":
        return None
    if given.get("type") != "grammar":
        raise InvalidRequest("must be 'text' or 'grammar'", f"{location}.type")
    if "grammar" in given:  # the responses endpoint has no inner object
        location = f"{location}.grammar"
        given = object_at(location, given["grammar"])
    syntax, definition = given.get("syntax"), given.get("definition")
    if syntax not in ("lark", "regex"):
        raise InvalidRequest("must be 'lark' or 'regex'", f"{location}.syntax")
    if not isinstance(definition, str) or not definition:
        raise InvalidRequest("must be a string that is not empty", f"{location}.definition")
    return TextFormat(syntax, definition)


def declared_schema(tool: Mapping[str, Any]) -> tuple[Any, str]:
    """The schema of a tool's arguments, and the name of its field.

    The field is ``parameters``, unless it is missing and another one of :data:`SCHEMA_FIELDS` is an object, in the
    function or beside it. vLLM reads only ``parameters``, but its prompts show the other fields of a function.
    """
    function = tool.get("function", tool)
    if function.get("parameters") is None:
        for field in SCHEMA_FIELDS[1:]:
            for holder in (function, tool):
                if isinstance(holder.get(field), Mapping):
                    return holder[field], field
    return function.get("parameters"), SCHEMA_FIELDS[0]


def schema_text(parameters: object, location: str) -> str:
    """The schema as compact JSON; :data:`ANY_OBJECT` if there is none."""
    if isinstance(parameters, msgspec.Raw):
        text = bytes(parameters).decode()  # an object, as spec.py has checked
        return ANY_OBJECT if text == "{}" else text
    if parameters is None or parameters == {} or parameters is True:
        return ANY_OBJECT
    if parameters is False:
        raise InvalidRequest("the schema false allows no arguments at all", location, "Leave the tool out")
    if not isinstance(parameters, Mapping):
        raise InvalidRequest(f"must be a JSON Schema object, not {kind_of_json(parameters)}", location)
    if not all(isinstance(key, str) for key in parameters):
        raise InvalidRequest("has a key that is not a string", location)
    try:
        return _COMPACT.encode(parameters)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the schema cannot be written as JSON: {error}", location) from error
