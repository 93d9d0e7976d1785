"""Bodies of requests before pydantic validates them: histories and forms of ``tool_choice`` that vLLM's models refuse.

Pydantic compiles a model's validators when the class is made, so replacing one of its functions has no effect. These
replace what the class was compiled to, with a function in front of it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import SchemaValidator
from pydantic_core.core_schema import no_info_before_validator_function
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMValidationError

from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.request.tool_choice import read_tool_choice
from constrained_k2.vllm_plugin.api_server.histories import accepted
from constrained_k2.vllm_plugin.api_server.refusals import refusals_noted
from constrained_k2.vllm_plugin.flags import XARGS_KEY
from constrained_k2.vllm_plugin.settings import ALLOWED_TOOLS_KEY, OFF


def prepared(body: Any) -> Any:
    """A body whose history and ``tool_choice`` vLLM's validators take; anything else as it is.

    The tools of ``allowed_tools`` go into ``vllm_xargs``, and its mode becomes the choice: the prompt shows all tools,
    and vLLM knows ``auto`` and ``required``. Null on /v1/responses is the default.
    """
    if not isinstance(body, dict):
        return body
    body = accepted(body)
    choice = body.get("tool_choice", "")
    if choice is None and "input" in body:
        return {name: value for name, value in body.items() if name != "tool_choice"}
    xargs = body.get("vllm_xargs") or {}
    if (
        not isinstance(choice, Mapping)
        or choice.get("type") != "allowed_tools"
        or "messages" not in body
        or not isinstance(xargs, Mapping)
        or xargs.get(XARGS_KEY) == OFF
    ):
        return body
    try:
        with refusals_noted():
            read = read_tool_choice(choice, _declared(body.get("tools")))
    except ConstrainedK2Error as error:
        raise VLLMValidationError(str(error), parameter=error.location or None) from error
    names = sorted(read.names or ())
    return {**body, "tool_choice": read.mode, "vllm_xargs": {**xargs, ALLOWED_TOOLS_KEY: names}}


def _declared(tools: Any) -> set[str]:
    """The names of the functions in a chat body that is not validated yet."""
    functions = (tool.get("function") for tool in tools if isinstance(tool, Mapping)) if isinstance(tools, list) else ()
    names = (function.get("name") for function in functions if isinstance(function, Mapping))
    return {name for name in names if isinstance(name, str)}


def core_schema(schema: Any) -> Any:
    """A model's schema, by which FastAPI reads a body, behind :func:`prepared`."""
    if schema["type"] == "definitions":
        return {**schema, "schema": no_info_before_validator_function(prepared, schema["schema"])}
    return no_info_before_validator_function(prepared, schema)


def _validator(model: Any) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:  # noqa: ARG001 - a validator does not give its schema back
        return SchemaValidator(core_schema(model.__pydantic_core_schema__))

    return make


chat_validator = _validator(ChatCompletionRequest)
responses_validator = _validator(ResponsesRequest)
