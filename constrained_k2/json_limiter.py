"""Structured output by a forced tool: a schema becomes the parameters of a function that must be called.

Kimi K2 was trained to call tools, not to answer in bare JSON; so what is wanted as JSON is asked for as a call, whose
arguments are an instance of the schema because nothing else can be sampled.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from constrained_k2.errors import InvalidRequest, MalformedCompletion, kind_of_json
from constrained_k2.format import ToolCallFormat

_WRAPPED = "value"  # the property that holds what is no object itself
_URN = "urn:constrained-k2:value"


@dataclass(frozen=True, slots=True)
class JsonLimiter:
    """Turns a schema into a request, and the answer into a value.

    Attributes:
        schema: JSON Schema of the value. One without ``"type": "object"`` becomes a property of the arguments.
        name: The function's name. The model reads it, so it should say what the value is.
        description: What the value is for; the model reads it too.
        strict: Whether a schema that cannot be kept whole is refused (as OpenAI's ``strict``).
    """

    schema: Mapping[str, Any] | bool
    name: str = "answer"
    description: str = "Give the final answer."
    strict: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.schema, Mapping | bool):
            raise InvalidRequest(f"must be a JSON Schema, not {kind_of_json(self.schema)}", "schema")
        if problem := ToolCallFormat.name_problem(self.name):
            raise InvalidRequest(f"the name {self.name[:80]!r} {problem}", "name", "Rename the function")

    @property
    def parameters(self) -> dict[str, Any]:
        """The schema of the function's arguments."""
        if not self._is_wrapped:
            assert isinstance(self.schema, Mapping)
            return dict(self.schema)
        inner = self.schema
        if isinstance(inner, Mapping) and "$id" not in inner:
            inner = {"$id": _URN, **inner}  # so that its references are still its own
        return {
            "type": "object",
            "properties": {_WRAPPED: inner},
            "required": [_WRAPPED],
            "additionalProperties": False,
        }

    @property
    def _is_wrapped(self) -> bool:
        return not (isinstance(self.schema, Mapping) and self.schema.get("type") == "object")

    def request(self, **body: Any) -> dict[str, Any]:
        """The fields of a chat-completions request, for any OpenAI client: ``create(**limiter.request(model=…))``.

        Args:
            **body: The rest of it, ``model`` and ``messages`` among them.

        Raises:
            InvalidRequest: The body has tools of its own.
        """
        for field in ("tools", "tool_choice", "response_format"):
            if body.get(field):
                raise InvalidRequest("cannot be combined with a forced tool", field, "Leave it out")
        function: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        if self.strict is not None:
            function["strict"] = self.strict
        return body | {
            "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": self.name}},
            "parallel_tool_calls": False,
        }

    def value(self, answer: Any) -> Any:
        """The value in an answer.

        Args:
            answer: A chat completion: of the ``openai`` package, or its JSON as Python values.

        Raises:
            MalformedCompletion: There is no whole call: the answer was cut off, or is no answer to such a request.
        """
        completion = answer.model_dump() if hasattr(answer, "model_dump") else answer
        try:
            choice = completion["choices"][0]
            (call,) = choice["message"]["tool_calls"]
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            reason = choice.get("finish_reason")
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise MalformedCompletion(
                "holds not exactly one call", "choices[0]", "Give it more max_tokens if finish_reason is 'length'"
            ) from error
        place = "choices[0].message.tool_calls[0].function"
        if name != self.name or reason == "length":
            raise MalformedCompletion(f"is a call of {name!r} that ended with {reason!r}", place)
        try:
            value = json.loads(arguments)
            return value[_WRAPPED] if self._is_wrapped else value
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise MalformedCompletion(f"holds no such value: {error}", f"{place}.arguments") from error
