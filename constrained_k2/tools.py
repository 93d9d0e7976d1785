"""What a request asks for: the tools, which may or must be called, and how many calls came before."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec

from constrained_k2.errors import InvalidRequest, SchemaTooCostly, kind_of_json
from constrained_k2.format import ToolCallFormat
from constrained_k2.spec_json import undecoded
from constrained_k2.thinking import read_thinking

Choice = Literal["auto", "none", "required"]
EngineName = Literal["llguidance", "xgrammar"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)

ANY_OBJECT = '{"type":"object"}'
"""The schema of a tool that declares no parameters: any JSON object."""


_COMPACT = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets on what one request may bring. Going over one raises :class:`SchemaTooCostly`.

    Attributes:
        tools: Number of tools.
        tools_bytes: All parameter schemas together, as compact JSON, in bytes.
        name_bytes: One function name in UTF-8, in bytes.
    """

    tools: int = 1024
    tools_bytes: int = 4 << 20
    name_bytes: int = 256


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model writes it.

    Attributes:
        name: The function's name.
        index: The number of tool calls before this one in the whole dialog.
        arguments: The text between the argument marker and the end of the call, exactly, or as it was repaired.
        leniencies: What had to be accepted beyond the format to read this call; names in
            :data:`constrained_k2.parsing.leniencies.LENIENCIES`.
        undeclared: Whether it is known to be a call of no tool of the request.
        written: What the model wrote as arguments, where they were repaired; else None.
    """

    name: str
    index: int
    arguments: str
    leniencies: tuple[str, ...] = ()
    undeclared: bool = False
    written: str | None = None

    @property
    def id(self) -> str:
        """``functions.NAME:INDEX``, the id to answer the call under."""
        return ToolCallFormat.call_id(self.name, self.index)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called.

    Attributes:
        name: Its name.
        schema: JSON Schema of its arguments as compact JSON text, properties in the order of the request.
        strict: As the request has it; see :class:`constrained_k2.policy.StrictPolicy`.
    """

    name: str
    schema: str = ANY_OBJECT
    strict: bool | None = None

    @property
    def parameters(self) -> Any:
        """The schema as Python values, made anew at each access."""
        return json.loads(self.schema)


@dataclass(frozen=True, slots=True)
class ToolCallSpec:
    """What one request constrains: the whole input of the compiler, hashable and independent of any vocabulary.

    Attributes:
        tools: The functions that may be called. For a named tool, or ``allowed_tools``, only those.
        choice: ``auto``: text, calls, or text and then calls. ``required``: calls at once (after the reasoning).
            ``none``: no calls.
        parallel: Whether a turn may hold more than one call.
        first_index: The index of the turn's first call: the number of calls in the dialog's history.
        thinking: Whether the model may reason first, between ``<think>`` and ``</think>``.
        engine: The engine for the arguments; None for the compiler's.
    """

    tools: tuple[Tool, ...] = ()
    choice: Choice = "auto"
    parallel: bool = True
    first_index: int = 0
    thinking: bool = False
    engine: EngineName | None = None

    @classmethod
    def from_openai(cls, body: object, *, limits: Limits = DEFAULT_LIMITS, thinking: bool = False) -> "ToolCallSpec":
        """Read a chat-completions (or responses) request body.

        Read are ``tools``, ``tool_choice``, ``parallel_tool_calls``, ``messages`` (for the number of calls in the
        history; ``first_index`` overrides it), ``thinking`` (a boolean, or Moonshot's ``{"type": "enabled"}``),
        ``chat_template_kwargs.thinking`` and ``engine`` (ours). Everything else is ignored.

        Args:
            body: The decoded JSON body.
            limits: Budgets.
            thinking: Whether the model may reason when the body does not say.

        Raises:
            InvalidRequest: Something in the body is wrong; ``place`` is the path to it.
            SchemaTooCostly: Over a budget.
        """
        if not isinstance(body, Mapping):
            raise InvalidRequest(f"the request must be a JSON object, not {kind_of_json(body)}", "body")
        tools = _read_tools(body.get("tools"), limits)
        parallel = body.get("parallel_tool_calls")
        if parallel is not None and not isinstance(parallel, bool):
            raise InvalidRequest(f"must be a boolean, not {kind_of_json(parallel)}", "parallel_tool_calls")
        said = read_thinking(body)
        spec = cls(
            tools=tools,
            parallel=parallel is not False,
            first_index=_read_first_index(body),
            thinking=thinking if said is None else said,
            engine=_read_engine(body.get("engine")),
        )
        from constrained_k2.tool_choice import with_choice  # which makes specs

        return with_choice(spec, body.get("tool_choice"))

    @classmethod
    def from_json(
        cls, text: str | bytes, *, limits: Limits = DEFAULT_LIMITS, thinking: bool = False, place: str = "body"
    ) -> "ToolCallSpec":
        """:meth:`from_openai` of a JSON text; the inverse of :meth:`to_json`.

        Args:
            text: The body.
            limits: Budgets.
            thinking: Whether the model may reason when the body does not say.
            place: What to call the text in errors.

        Raises:
            InvalidRequest: The text is not JSON, or is nested too deeply to be read.
        """
        body: object = undecoded(text)
        if body is None:
            try:
                body = json.loads(text)
            except (ValueError, TypeError, RecursionError) as error:
                raise InvalidRequest(f"must be JSON: {error}", place) from error
        return cls.from_openai(body, limits=limits, thinking=thinking)

    def to_json(self) -> str:
        """The spec as a minimal request body, in one line of JSON."""
        body = {
            "tools": [
                {
                    "type": "function",
                    "function": {"name": tool.name, "parameters": tool.parameters}
                    | ({} if tool.strict is None else {"strict": tool.strict}),
                }
                for tool in self.tools
            ],
            "tool_choice": self.choice,
            "parallel_tool_calls": self.parallel,
            "first_index": self.first_index,
            "thinking": self.thinking,
        } | ({} if self.engine is None else {"engine": self.engine})
        return json.dumps(body, separators=(",", ":"))

    @property
    def max_calls(self) -> int | None:
        """How many calls the turn may hold; None for any number."""
        if not self.tools or self.choice == "none":
            return 0
        return None if self.parallel else 1


def _read_tools(value: object, limits: Limits) -> tuple[Tool, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InvalidRequest(f"must be an array, not {kind_of_json(value)}", "tools")
    if len(value) > limits.tools:
        raise SchemaTooCostly(
            f"{len(value)} tools are more than the {limits.tools} that one request may bring",
            "tools",
            "Send only the tools that this turn may need",
            budget="tools",
            limit=limits.tools,
            actual=len(value),
        )
    tools: list[Tool] = []
    places: dict[str, int] = {}
    size = 0
    for number, entry in enumerate(value):
        tool = _read_tool(entry, f"tools[{number}]", limits)
        if tool.name in places:
            raise InvalidRequest(
                f"the name {tool.name!r} is already that of tools[{places[tool.name]}]",
                f"tools[{number}].function.name",
                "Give every function a name of its own",
            )
        places[tool.name] = number
        size += len(tool.schema)
        if size > limits.tools_bytes:
            raise SchemaTooCostly(
                f"the schemas up to this tool take {size} bytes, over the {limits.tools_bytes} of one request",
                f"tools[{number}]",
                "Send fewer tools or smaller schemas",
                budget="tools_bytes",
                limit=limits.tools_bytes,
                actual=size,
            )
        tools.append(tool)
    return tuple(tools)


def _read_tool(entry: object, place: str, limits: Limits) -> Tool:
    if not isinstance(entry, Mapping):
        raise InvalidRequest(f"must be an object, not {kind_of_json(entry)}", place)
    if entry.get("type", "function") != "function":
        raise InvalidRequest(
            f"the type is {str(entry['type'])[:80]!r}; only 'function' tools can be constrained", f"{place}.type"
        )
    function = entry.get("function", entry)  # the responses endpoint has no inner object
    if function is not entry:
        place = f"{place}.function"
    if not isinstance(function, Mapping):
        raise InvalidRequest(f"must be an object, not {kind_of_json(function)}", place)
    name = function.get("name")
    if not isinstance(name, str):
        raise InvalidRequest(f"must be a string, not {kind_of_json(name)}", f"{place}.name")
    if problem := ToolCallFormat.name_problem(name):
        raise InvalidRequest(f"the name {name[:80]!r} {problem}", f"{place}.name", "Rename the function")
    if (length := len(name.encode())) > limits.name_bytes:
        raise SchemaTooCostly(
            f"the name {name[:40]!r}… takes {length} bytes, over {limits.name_bytes}",
            f"{place}.name",
            "Rename the function",
            budget="name_bytes",
            limit=limits.name_bytes,
            actual=length,
        )
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidRequest(f"must be a boolean, not {kind_of_json(strict)}", f"{place}.strict")
    return Tool(name, _schema_text(function.get("parameters"), f"{place}.parameters"), strict)


def _schema_text(parameters: object, place: str) -> str:
    """The schema as compact JSON; that of any object where none is given."""
    if isinstance(parameters, msgspec.Raw):
        text = bytes(parameters).decode()  # an object, as undecoded() has seen to
        return ANY_OBJECT if text == "{}" else text
    if parameters is None or parameters == {} or parameters is True:
        return ANY_OBJECT
    if parameters is False:
        raise InvalidRequest("the schema false allows no arguments at all", place, "Leave the tool out")
    if not isinstance(parameters, Mapping):
        raise InvalidRequest(f"must be a JSON Schema object, not {kind_of_json(parameters)}", place)
    if not all(isinstance(key, str) for key in parameters):
        raise InvalidRequest("has a key that is no string", place)
    try:
        return _COMPACT.encode(parameters)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the schema cannot be written as JSON: {error}", place) from error


def _read_engine(value: object) -> EngineName | None:
    if value is None or value in ENGINES:
        return value
    raise InvalidRequest(f"{str(value)[:40]!r} is no engine", "engine", f"Use {' or '.join(ENGINES)}")


def _read_first_index(body: Mapping[str, Any]) -> int:
    given = body.get("first_index")
    if given is not None:
        if type(given) is not int or not 0 <= given < 10**9:
            raise InvalidRequest("must be an integer from 0 to 999999999", "first_index")
        return given
    messages = body.get("messages")
    if messages is None:
        return 0
    if not isinstance(messages, list | tuple):
        raise InvalidRequest(f"must be an array, not {kind_of_json(messages)}", "messages")
    count = 0
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidRequest(f"must be an object, not {kind_of_json(message)}", f"messages[{number}]")
        calls = message.get("tool_calls")
        if calls is None:
            continue
        if not isinstance(calls, list | tuple):
            raise InvalidRequest(f"must be an array, not {kind_of_json(calls)}", f"messages[{number}].tool_calls")
        count += len(calls)
    return count
