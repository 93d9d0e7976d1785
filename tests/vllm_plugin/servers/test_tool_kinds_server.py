"""Through a real server: tools of other kinds beside functions, and every form of ``tool_choice``."""

import json
import re
from typing import Any

import pytest

from constrained_k2 import Vocabulary
from constrained_k2.evaluation.server import VllmServer
from tests.kit.servers import on
from tests.kit.tools import tool
from tests.vllm_plugin.asking import chat, respond

pytestmark = [pytest.mark.server, on("logits_processor")]

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"],
        "additionalProperties": False}  # fmt: skip
F = {"type": "function", "name": "find", "description": "", "parameters": CITY, "strict": False}
NAMESPACE = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [F]}
CUSTOM = {"type": "custom", "name": "patch", "description": "Applies a patch."}
WEB = {"type": "web_search"}
TOOLS = [tool(name, CITY) for name in ("f", "g", "f")]
FIELDS = {"temperature": 1.0, "vllm_xargs": {"constrained_k2_finish_reserve": 200}}


def responses(server: VllmServer, *, stream: bool, **fields: Any) -> list[dict[str, Any]]:
    """The output of a completed response."""
    response = respond(server, stream=stream, **FIELDS, **({"input": "hi", "max_output_tokens": 400} | fields))
    assert response["status"] == "completed"
    return list(response["output"])


def names(server: VllmServer, *, stream: bool, **fields: Any) -> list[str]:
    """The names of the functions that a chat's answer calls."""
    seen = chat(server, stream=stream, **FIELDS | {"tools": TOOLS, "max_tokens": 400} | fields)
    return [name for _, name, _ in seen.calls]


@pytest.mark.parametrize("stream", [False, True])
def test_namespaces_and_custom_tools(server: VllmServer, stream: bool) -> None:
    tools = [WEB, NAMESPACE, CUSTOM]
    called = responses(server, stream=stream, tools=tools, tool_choice={"type": "function", "name": "find"})
    (call,) = (item for item in called if item["type"] == "function_call")
    assert (call["name"], call["namespace"]) == ("find", "crm")
    assert json.loads(call["arguments"]).keys() == {"city"}
    called = responses(server, stream=stream, tools=tools, tool_choice={"type": "custom", "name": "patch"})
    (call,) = (item for item in called if item["type"] == "custom_tool_call")
    assert call["name"] == "patch" and isinstance(call["input"], str)


@pytest.mark.parametrize("stream", [False, True])
def test_custom_tools_with_a_grammar(server: VllmServer, stream: bool) -> None:
    line = {"type": "grammar", "syntax": "lark", "definition": 'start: ("+" /[^\\n]{1,4}/ "\\n")~2 "."'}
    tools = [NAMESPACE, {**CUSTOM, "format": line}]
    called = responses(server, stream=stream, tools=tools, tool_choice={"type": "custom", "name": "patch"})
    (call,) = (item for item in called if item["type"] == "custom_tool_call")
    assert re.fullmatch(r"(\+[^\n]{1,4}\n){2}\.", call["input"])
    form = {"type": "grammar", "grammar": {"syntax": "regex", "definition": '"[a-z]{3}"\\n'}}
    custom = {"type": "custom", "custom": {"name": "patch", "format": form}}
    answer = chat(server, stream=stream, **FIELDS, tools=[*TOOLS, custom], max_tokens=400,
                  tool_choice={"type": "custom", "custom": {"name": "patch"}})  # fmt: skip
    ((_, name, arguments),) = answer.calls
    assert name == "patch" and re.fullmatch('"[a-z]{3}"\n', json.loads(arguments)["input"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_choice_of_null_keeps_its_calls(server: VllmServer, vocabulary: Vocabulary, stream: bool) -> None:
    """A bias makes the random model open the section, where it may."""
    fields: dict[str, Any] = {"stream": stream, "tool_choice": None}
    fields["logit_bias"] = {str(vocabulary.format.section_begin): 100}
    assert names(server, **fields)
    assert any(item["type"] == "function_call" for item in responses(server, tools=[F], **fields))
