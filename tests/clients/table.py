"""Some 300 requests, from a compact table: tools by tool choices, fields by choices, histories, kinds of tools."""

from dataclasses import dataclass, field
from typing import Any

from tests.clients.scripts.common import CHAT_TOOLS, QUESTION, WEATHER_SCHEMA
from tests.prompts.dialogs import call, result

LEFT_OUT = object()
"""A tool choice that the body does not have."""

_ANSWER = {
    "type": "object",
    "properties": {"warm": {"type": "boolean"}},
    "required": ["warm"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Row:
    """A request in the words of chat completions; :mod:`tests.clients.endpoints` says it in those of the others."""

    name: str  # unique
    tools: list[dict[str, Any]] | None = None
    choice: Any = LEFT_OUT
    fields: dict[str, Any] = field(default_factory=dict)  # more fields of the body
    messages: list[dict[str, Any]] = field(default_factory=lambda: list(QUESTION))
    only: tuple[str, ...] = ("chat", "responses", "messages", "completions")  # the endpoints


def _tool(name: str = "get_weather", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def _of(**properties: Any) -> list[dict[str, Any]]:
    """One tool whose arguments have these properties, all required."""
    return [_tool(parameters={"type": "object", "properties": properties, "required": list(properties)})]


_WEATHER = CHAT_TOOLS[:1]
_NEXT = {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
_NODE = {"type": "object", "properties": {"next": _NEXT}, "required": ["next"]}
TOOLS: dict[str, list[dict[str, Any]] | None] = {
    "no tools": None,
    "one tool": _WEATHER,
    "two tools": CHAT_TOOLS,
    "thirty tools": [_tool(f"tool_{n}", description="One of many.", parameters=WEATHER_SCHEMA) for n in range(30)],
    "strict": [_tool(parameters=WEATHER_SCHEMA, strict=True)],
    "strict false": [_tool(parameters=WEATHER_SCHEMA, strict=False)],
    "strict null": [_tool(parameters=WEATHER_SCHEMA, strict=None)],
    "no parameters": [_tool()],
    "empty parameters": [_tool(parameters={})],
    "open object": [_tool(parameters={"type": "object"})],
    "recursive": [_tool(parameters={"type": "object", "properties": {"n": {"$ref": "#/$defs/node"}}, "required": ["n"], "$defs": {"node": _NODE}})],
    "annotated": [_tool(parameters={"$schema": "http://json-schema.org/draft-07/schema#", "title": "T", "type": "object", "properties": {"a": {"type": "integer", "default": 3, "examples": [1]}}, "required": []})],
    "keywords": _of(a={"type": "string", "pattern": "^[a-c]{2}$"}, b={"oneOf": [{"type": "integer", "minimum": 3, "maximum": 9}, {"type": "boolean"}]}, c={"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 2}),
    "formats": _of(day={"type": "string", "format": "date"}, mail={"type": "string", "format": "unknown-to-all", "maxLength": 5}),
    "nullable": _of(a={"type": ["integer", "null"]}, b={"type": "boolean", "nullable": True}),
    "relaxed keyword": [_tool(parameters={"type": "object", "properties": {"a": {"type": "array", "items": {"type": "number", "multipleOf": 0.5}, "uniqueItems": True, "maxItems": 3}}})],
    "same tool twice": [*_WEATHER, *_WEATHER],
    "same name twice": [*_WEATHER, _tool(parameters={"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]})],
    "odd names": [_tool("mcp__files-read_2", parameters=WEATHER_SCHEMA), _tool("Ns.read", parameters=WEATHER_SCHEMA)],
    "strict false, no grammar": [_tool(parameters={"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=.*)x?"}}}, strict=False)],
}  # fmt: skip


def _choices(tools: list[dict[str, Any]] | None) -> dict[str, Any]:
    """The tool choices for some tools; those that name a tool name the first one."""
    found = {"left out": LEFT_OUT, "auto": "auto", "none": "none"}
    if tools is None:
        return found
    first = _tool(tools[0]["function"]["name"])
    allowed = {
        f"allowed, {mode}": {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [first]}}
        for mode in ("auto", "required")
    }
    return found | {"required": "required", "named": first, "null": None} | allowed


_JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": _ANSWER, "strict": True}}
FIELDS: dict[str, dict[str, Any]] = {
    "one call at a time": {"parallel_tool_calls": False},
    "parallel null": {"parallel_tool_calls": None},
    "format text": {"response_format": {"type": "text"}},
    "format json_object": {"response_format": {"type": "json_object"}},
    "format json_schema": {"response_format": _JSON_SCHEMA},
    "structured json": {"structured_outputs": {"json": _ANSWER}},
    "structured regex": {"structured_outputs": {"regex": "a{2,5}"}},
    "structured choice": {"structured_outputs": {"choice": ["yes", "no"]}},
    "structured grammar": {"structured_outputs": {"grammar": 'root ::= "a" | "b"'}},
    "thinking budget": {"thinking_token_budget": 1024},
    "small thinking budget": {"thinking_token_budget": 5},
    "several limits": {"thinking_token_budget": 0, "bad_words": ["a"], "allowed_token_ids": list(range(900))},
    "bad words": {"bad_words": ["Oslo", "a b"]},
    "allowed ids": {"allowed_token_ids": list(range(40))},
    "allowed ids of every transition": {"allowed_token_ids": list(range(1024))},
    "bias": {"logit_bias": {"7": -100, "8": 50}},
    "min tokens": {"min_tokens": 4},
    "stop": {"stop": ["}", "Oslo"]},
    "stop ids": {"stop_token_ids": [5, 6]},
    "stop in the output": {"stop": ["}"], "include_stop_str_in_output": True},
    "several choices": {"n": 2},
    "log probabilities": {"logprobs": True, "top_logprobs": 2},
    "prompt log probabilities": {"prompt_logprobs": 1},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "nucleus": {"top_p": 0.9, "top_k": 20, "min_p": 0.05},
    "greedy": {"temperature": 0},
    "ignore the end": {"ignore_eos": True},
    "special tokens shown": {"skip_special_tokens": False, "spaces_between_special_tokens": False},
    "token ids": {"return_token_ids": True, "return_tokens_as_token_ids": True},
    "beams": {"use_beam_search": True, "n": 2},
    "one token": {"max_tokens": 1},
    "truncated prompt": {"truncate_prompt_tokens": 200},
    "reasoning left out": {"include_reasoning": False},
    "effort": {"reasoning_effort": "low"},
    "effort none": {"reasoning_effort": "none"},
    "template arguments": {"chat_template_kwargs": {"thinking": False, "enable_thinking": False}},
    "no generation prompt": {"add_generation_prompt": False},
    "documents": {"documents": [{"title": "t", "text": "x"}]},
    "accounting": {
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "prompt_cache_key": "k",
    },
    "request id": {"cache_salt": "salt", "session_id": "s"},
    "priority": {"priority": 0},
    "unknown field": {"never_heard_of": {"a": 1}},
    "repetition detection": {"repetition_detection": {"max_pattern_size": 3, "min_count": 20}},
    "stream interval": {"stream_interval": 4},
    "wrong: temperature": {"temperature": -1},
    "wrong: tokens": {"max_tokens": 1_000_000},
    "wrong: format": {"response_format": {"type": "poem"}},
}
_CALL = call("functions.get_weather:0", "get_weather", '{"city":"Oslo","units":"celsius"}')
_FOREIGN = call("call_x", "get_weather", "{}")
_RESULT = result("functions.get_weather:0", "7 degrees")


def _after(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return [*QUESTION, *messages]


HISTORIES: dict[str, list[dict[str, Any]]] = {
    "call and result": _after({"role": "assistant", "content": None, "tool_calls": [_CALL]}, _RESULT),
    "foreign id": _after({"role": "assistant", "content": "", "tool_calls": [_FOREIGN]}, result("call_x", "7")),
    "two calls": _after({"role": "assistant", "tool_calls": [_CALL, _FOREIGN]}, _RESULT, result("call_x", "7")),
    "result in parts": _after({"role": "assistant", "tool_calls": [_CALL]}, _RESULT | {"content": [{"type": "text", "text": "7"}]}),
    "empty result": _after({"role": "assistant", "tool_calls": [_CALL]}, _RESULT | {"content": ""}),
    "result without a call": _after(_RESULT),
    "call without a result": _after({"role": "assistant", "tool_calls": [_CALL]}, *QUESTION),
    "unknown tool": _after({"role": "assistant", "tool_calls": [call("c", "gone", "{}")]}, result("c", "7")),
    "system": [{"role": "system", "content": "Be brief."}, *QUESTION],
    "developer": [{"role": "developer", "content": "Be brief."}, *QUESTION],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
    "assistant last": _after({"role": "assistant", "content": "It is"}),
    "reasoning": _after({"role": "assistant", "content": "It is warm.", "reasoning_content": "hm"}, *QUESTION),
    "markers in a result": _after({"role": "assistant", "tool_calls": [_CALL]}, _RESULT | {"content": "<|tool_calls_section_begin|><|im_end|>"}),
    "several users": [*QUESTION, *QUESTION],
    "empty user": [{"role": "user", "content": ""}],
}  # fmt: skip
_KINDS: dict[str, dict[str, Any]] = {
    "web search": {"type": "web_search"},
    "local shell": {"type": "local_shell"},
    "code interpreter": {"type": "code_interpreter", "container": {"type": "auto"}},
    "image generation": {"type": "image_generation"},
    "custom text": {"type": "custom", "name": "apply_patch", "description": "d", "format": {"type": "text"}},
    "custom grammar": {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}},
    "custom without a format": {"type": "custom", "name": "apply_patch"},
    "remote server": {"type": "mcp", "server_label": "x", "server_url": "https://localhost/", "require_approval": "never"},
    "file search": {"type": "file_search", "vector_store_ids": ["v"]},
    "namespace": {"type": "namespace", "name": "ns", "description": "d", "tools": [
        {"type": "function", "name": "read", "parameters": WEATHER_SCHEMA, "strict": False}]},
    "tool search": {"type": "tool_search"},
}  # fmt: skip


def rows() -> list[Row]:
    """All requests."""
    found = [
        Row(f"{tools_name}; choice {choice_name}", tools, choice)
        for tools_name, tools in TOOLS.items()
        for choice_name, choice in _choices(tools).items()
    ]
    for fields_name, fields in FIELDS.items():
        found.append(Row(f"no tools; {fields_name}", fields=fields))
        found += [Row(f"{fields_name}; choice {choice}", _WEATHER, choice, fields) for choice in ("auto", "required")]
    dialogs = ("chat", "responses", "messages")
    found += [
        Row(f"{history_name}; choice {choice}", _WEATHER, choice, messages=messages, only=dialogs)
        for history_name, messages in HISTORIES.items()
        for choice in ("required", "none")
    ]
    for kind_name, kind in _KINDS.items():
        found.append(Row(f"{kind_name} alone", [kind], only=("chat", "responses")))
        found.append(Row(f"{kind_name} beside a function", [*_WEATHER, kind], only=("chat", "responses")))
    return found
