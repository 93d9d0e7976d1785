"""Gets structured output through a forced tool call, whose parameters include the output's schema.

Kimi K2 was trained to call tools, not to answer in bare JSON.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from constrained_k2.errors import InvalidRequest, MalformedCompletion, excerpt, kind_of_json
from constrained_k2.formats.kimi_k2 import KIMI_K2

_WRAPPED = "value"  # the property that contains the output if the output is not an object
_URN = "urn:constrained-k2:value"


@dataclass(frozen=True, slots=True)
class JsonLimiter:
    """Turns a schema into a request with one forced tool, and its answer into the value.

    Attributes:
        schema: JSON Schema of the value. A schema without ``"type": "object"`` becomes a property of the arguments.
        name: The function's name. The model reads it: name the value.
        description: The function's description. The model reads it: say what the value is for.
        strict: True to refuse a schema that cannot be fully enforced (OpenAI's ``strict``).
    """

    schema: Mapping[str, Any] | bool
    name: str = "answer"
    description: str = "Give the final answer."
    strict: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.schema, Mapping | bool):
            raise InvalidRequest(f"must be a JSON Schema, not {kind_of_json(self.schema)}", "schema")
        if problem := KIMI_K2.name_problem(self.name):
            raise InvalidRequest(f"the name {excerpt(self.name)} {problem}", "name", "Rename the function")

    @property
    def parameters(self) -> dict[str, Any]:
        """The schema of the function's arguments."""
        inner = self.schema
        if isinstance(inner, Mapping):
            if not self._is_wrapped:
                return dict(inner)
            inner = inner if "$id" in inner else {"$id": _URN, **inner}  # references resolve inside it
        properties = {_WRAPPED: inner}
        return {"type": "object", "properties": properties, "required": [_WRAPPED], "additionalProperties": False}

    @property
    def _is_wrapped(self) -> bool:
        return not (isinstance(self.schema, Mapping) and self.schema.get("type") == "object")

    def request(self, **body: Any) -> dict[str, Any]:
        """The fields of a chat-completions request, for any OpenAI client: ``create(**limiter.request(model=…))``.

        Raises:
            InvalidRequest: The body has ``tools``, ``tool_choice`` or ``response_format``.
        """
        for field in ("tools", "tool_choice", "response_format"):
            if body.get(field):
                raise InvalidRequest("cannot be combined with a forced tool", field, "Leave it out")
        strict = {} if self.strict is None else {"strict": self.strict}
        function = {"name": self.name, "description": self.description, "parameters": self.parameters, **strict}
        return body | {
            "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": self.name}},
            "parallel_tool_calls": False,
        }

    def value(self, answer: Any) -> Any:
        """The value in an answer: a chat completion, of the ``openai`` package or as decoded JSON.

        Raises:
            MalformedCompletion: The answer has no complete call: it was cut off, or belongs to another request.
        """
        completion = answer.model_dump() if hasattr(answer, "model_dump") else answer
        try:
            choice = completion["choices"][0]
            (call,) = choice["message"]["tool_calls"]
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            reason = choice.get("finish_reason")
        except (KeyError, IndexError, TypeError, ValueError) as error:
            remedy = "Give it more max_tokens if finish_reason is 'length'"
            raise MalformedCompletion("must contain exactly one call", "choices[0]", remedy) from error
        location = "choices[0].message.tool_calls[0].function"
        if name != self.name or reason == "length":
            raise MalformedCompletion(f"is a call of {name!r} that ended with {reason!r}", location)
        try:
            value = json.loads(arguments)
            return value[_WRAPPED] if self._is_wrapped else value
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise MalformedCompletion(f"does not contain the value: {error}", f"{location}.arguments") from error
