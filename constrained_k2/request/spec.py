"""The constraint of one request: tools, tool choice, response format and number of earlier calls."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec

from constrained_k2.errors import InvalidRequest, excerpt
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.request.answer_format import AnswerFormat, read_answer_format
from constrained_k2.request.call_limits import RepeatedCalls, read_max_calls, read_repeated_calls
from constrained_k2.request.strictness import StrictFalse, read_strict_false
from constrained_k2.request.tool_choice import Choice, read_tool_choice
from constrained_k2.request.tools import ANY_OBJECT, DEFAULT_LIMITS, Limits, Tool, read_tools
from constrained_k2.request.undeclared_calls import UndeclaredCalls, read_undeclared_calls
from constrained_k2.request.values import array_at, boolean_at, object_at
from constrained_k2.schema.undeclared_keys import UndeclaredKeys, read_undeclared_keys
from constrained_k2.threads.interruptible import yield_gil

__all__ = ["ANY_OBJECT", "ENGINES", "EngineName", "Limits", "Tool", "ToolCall", "ToolCallSpec"]

EngineName = Literal["llguidance", "xgrammar"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model writes it."""

    name: str
    index: int  # the number of tool calls before this one in the whole dialog
    arguments: str  # the exact text between the argument marker and the end of the call, or its recovered form
    recoveries: tuple[str, ...] = ()  # the accepted deviations from the format: names in parsing.events.RECOVERIES
    undeclared: bool = False  # the request is known to have no such tool
    written: str | None = None  # the model's text of recovered arguments

    @property
    def id(self) -> str:
        """The call id, ``functions.NAME:INDEX``."""
        return KIMI_K2.call_id(self.name, self.index)


@dataclass(frozen=True, slots=True)
class ToolCallSpec:
    """The constraint of one request: the whole input of the compiler, hashable and independent of any vocabulary.

    The choice ``auto`` allows text, calls, or text and then calls; ``required`` demands calls at once (after the
    reasoning); ``none`` forbids calls.
    """

    tools: tuple[Tool, ...] = ()  # the functions that may be called; for a named tool or allowed_tools, only those
    choice: Choice = "auto"
    parallel: bool = True  # a turn may contain more than one call
    first_index: int = 0  # the index of the turn's first call: the number of calls in the dialog's history
    thinking: bool = False  # the model may reason first, between <think> and </think>
    engine: EngineName | None = None  # grammar engine of the arguments; None for the compiler's default
    answer: AnswerFormat | None = None  # the response format: the only text beside reasoning and calls; None for any
    undeclared_keys: UndeclaredKeys | None = None  # for objects with ``properties``; None: compiler's default
    strict_false: StrictFalse | None = None  # the level of tools with ``strict: false``; None for the policy's
    undeclared_calls: UndeclaredCalls | None = None  # ``decline`` or ``nearest``; None for the compiler's default
    call_limit: int | None = None  # the request's max_calls, a limit besides choice and parallel; None for any number
    repeated_calls: RepeatedCalls | None = None  # whether calls with equal arguments are allowed; None to allow them

    @classmethod
    def from_openai(cls, body: object, *, limits: Limits = DEFAULT_LIMITS, thinking: bool = False) -> "ToolCallSpec":
        """Read a chat-completions (or responses) request body.

        Reads ``tools``, ``tool_choice``, ``parallel_tool_calls``, ``messages`` (to count the calls in the history;
        ``first_index`` overrides that), ``thinking`` (a boolean, or Moonshot's ``{"type": "enabled"}``),
        ``chat_template_kwargs.thinking`` (``thinking`` here is the default), ``response_format`` (``text.format``,
        vLLM's ``structured_outputs``), which is ignored if a call is required, and this package's ``engine``,
        ``undeclared_keys``, ``strict_false``, ``undeclared_calls``, ``max_calls`` and ``repeated_calls``.

        Raises:
            InvalidRequest: A field is invalid; ``location`` is its path.
            SchemaTooCostly: Over a budget.
        """
        body = object_at("body", body)
        tools = read_tools(body.get("tools"), limits)
        parallel = boolean_at("parallel_tool_calls", body.get("parallel_tool_calls"))
        stated = _read_thinking(body)
        first_index, engine = _read_first_index(body), _read_engine(body.get("engine"))
        undeclared_keys = body.get("undeclared_keys")
        choice = read_tool_choice(body.get("tool_choice"), {tool.name for tool in tools})
        answer = read_answer_format(body, limits)
        return cls(
            tools=tools if choice.names is None else tuple(tool for tool in tools if tool.name in choice.names),
            choice=choice.mode,
            parallel=parallel is not False and not choice.is_single,
            first_index=first_index,
            thinking=thinking if stated is None else stated,
            engine=engine,
            answer=None if choice.mode == "required" else answer,
            undeclared_keys=None if undeclared_keys is None else read_undeclared_keys(undeclared_keys),
            strict_false=read_strict_false(body.get("strict_false"), "strict_false"),
            undeclared_calls=read_undeclared_calls(body.get("undeclared_calls")),
            call_limit=read_max_calls(body.get("max_calls")),
            repeated_calls=read_repeated_calls(body.get("repeated_calls")),
        )

    @classmethod
    def from_json(
        cls, text: str | bytes, *, limits: Limits = DEFAULT_LIMITS, thinking: bool = False, location: str = "body"
    ) -> "ToolCallSpec":
        """As :meth:`from_openai`, from JSON text (named ``location`` in errors); the inverse of :meth:`to_json`."""
        body: object = _undecoded(text)
        if body is None:
            try:
                body = json.loads(text)
            except (ValueError, TypeError, RecursionError) as error:
                raise InvalidRequest(f"must be JSON: {error}", location) from error
        return cls.from_openai(body, limits=limits, thinking=thinking)

    def to_json(self) -> str:
        """The spec as a minimal request body: one line of ASCII JSON."""
        body: dict[str, Any] = {
            "tool_choice": self.choice,
            "parallel_tool_calls": self.parallel,
            "first_index": self.first_index,
            "thinking": self.thinking,
        }
        optional = ("engine", "undeclared_keys", "strict_false", "undeclared_calls", "repeated_calls")
        body |= {field: value for field in optional if (value := getattr(self, field)) is not None}
        body |= {} if self.call_limit is None else {"max_calls": self.call_limit}
        body |= {} if self.answer is None else self.answer.to_body()
        # Schemas are JSON already. For a long list of tools, decoding and encoding them would take milliseconds.
        tools = ",".join(map(_tool_text, self.tools))
        return f'{{"tools":[{tools}],{json.dumps(body, separators=(",", ":"))[1:]}'

    @property
    def max_calls(self) -> int | None:
        """The most calls that the turn may contain; None for any number."""
        if not self.tools or self.choice == "none":
            return 0
        return self.call_limit if self.parallel else 1


def _tool_text(tool: Tool) -> str:
    yield_gil()
    if tool.format is not None:
        return json.dumps(tool.format.to_tool(tool.name), separators=(",", ":"))
    schema = tool.schema
    if not (schema.isascii() and schema.isprintable()):
        schema = json.dumps(tool.parameters, separators=(",", ":"))
    strict = "" if tool.strict is None else f',"strict":{json.dumps(tool.strict)}'
    return f'{{"type":"function","function":{{"name":{json.dumps(tool.name)},"parameters":{schema}{strict}}}}}'


def _read_engine(value: object) -> EngineName | None:
    if value is None or value in ENGINES:
        return value
    raise InvalidRequest(f"unknown engine {excerpt(value)}", "engine", f"Use {' or '.join(map(repr, ENGINES))}")


def _read_first_index(body: Mapping[str, Any]) -> int:
    given = body.get("first_index")
    if given is not None:
        if type(given) is not int or not 0 <= given < 10**9:
            raise InvalidRequest("must be an integer from 0 to 999999999", "first_index")
        return given
    messages = body.get("messages")
    count = 0
    for number, message in enumerate(() if messages is None else array_at("messages", messages)):
        calls = object_at(f"messages[{number}]", message).get("tool_calls")
        count += 0 if calls is None else len(array_at(f"messages[{number}].tool_calls", calls))
    return count


def stated_thinking(body: Mapping[str, Any]) -> bool | None:
    """The request's ``thinking``: a boolean, or Moonshot's ``{"type": "enabled"}``; None if it is not set."""
    value = body.get("thinking")
    if isinstance(value, Mapping):
        if value.get("type") not in ("enabled", "disabled"):
            raise InvalidRequest("must be 'enabled' or 'disabled'", "thinking.type")
        return bool(value["type"] == "enabled")
    return boolean_at("thinking", value)


def _read_thinking(body: Mapping[str, Any]) -> bool | None:
    """True if the model may reason, by ``thinking`` or the chat template's variable; None if neither is set."""
    stated = stated_thinking(body)
    given = body.get("chat_template_kwargs")
    variables = {} if given is None else object_at("chat_template_kwargs", given)
    name = "thinking" if "thinking" in variables else "enable_thinking"
    return boolean_at(f"chat_template_kwargs.{name}", variables.get(name)) if stated is None else stated


class _Function(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    parameters: msgspec.Raw
    strict: bool | None = None


class _Tool(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["function"]
    function: _Function


class _JsonSchema(msgspec.Struct, forbid_unknown_fields=True):
    schema: msgspec.Raw
    strict: bool | None = None


class _ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    json_schema: _JsonSchema


class _Spec(msgspec.Struct, forbid_unknown_fields=True):
    tools: list[_Tool]
    tool_choice: str
    parallel_tool_calls: bool
    first_index: int
    thinking: bool
    engine: str | None = None
    response_format: _ResponseFormat | None = None
    structured_outputs: dict[str, str] | None = None
    undeclared_keys: str | None = None
    strict_false: str | None = None
    undeclared_calls: str | None = None
    max_calls: int | None = None
    repeated_calls: str | None = None


_DECODER = msgspec.json.Decoder(_Spec)


def _undecoded(text: str | bytes) -> dict[str, Any] | None:
    """The request body with schemas as undecoded JSON text (``msgspec.Raw``); None if it is not in to_json's form."""
    try:
        spec = _DECODER.decode(text)
        functions = [tool.function for tool in spec.tools]
        schemas = [function.parameters for function in functions]
        schemas += [] if spec.response_format is None else [spec.response_format.json_schema.schema]
        # msgspec does not decode the schemas, so it does not see bytes in them that are not UTF-8.
        if not all(bytes(schema).decode().startswith("{") for schema in schemas):
            return None
    except (msgspec.DecodeError, RecursionError, TypeError, UnicodeError):
        return None
    form = spec.response_format
    return msgspec.structs.asdict(spec) | {
        "tools": [{"function": msgspec.structs.asdict(each)} for each in functions],
        "response_format": form and {"type": form.type, "json_schema": msgspec.structs.asdict(form.json_schema)},
    }
