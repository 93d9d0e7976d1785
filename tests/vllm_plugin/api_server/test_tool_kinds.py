"""Tools of other kinds beside functions, and forms of ``tool_choice``, on vLLM's own request objects."""

import itertools
import re
from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.utils import construct_tool_dicts
from vllm.exceptions import VLLMValidationError

from constrained_k2 import Vocabulary
from constrained_k2.request.tools import TextFormat
from constrained_k2.vllm_plugin.api_server import functions
from constrained_k2.vllm_plugin.api_server.middleware import rewritten
from constrained_k2.vllm_plugin.shared.log import _warn_once
from tests.kit.tools import tool
from tests.vllm_plugin.parsers import TOOL, Composed, chat, responses, spec_of

F = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
WEB = {"type": "web_search"}
CUSTOM = {"type": "custom", "name": "patch", "description": "Applies a patch."}
NAMESPACE = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [{**F, "name": "find"}]}
OTHERS = [
    WEB,
    {"type": "local_shell"},
    {"type": "image_generation"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "mcp", "server_label": "docs", "server_url": "http://localhost"},
]
G = tool("g")


def names_of(request: Any) -> list[str]:
    return [each.name for each in spec_of(request).tools]


def test_the_constraint_has_the_functions_of_the_prompt(composed: Composed) -> None:
    request = composed.adjusted(responses(tools=[*OTHERS, F, NAMESPACE, CUSTOM]))
    assert names_of(request) == ["f", "crm__find", "patch"]
    shown = construct_tool_dicts(request.tools, request.tool_choice)
    assert shown is not None and [each["function"]["name"] for each in shown] == names_of(request)
    assert spec_of(request).tools[2].parameters["required"] == ["input"]  # vLLM shows a custom tool as this function


FORM = {"type": "grammar", "syntax": "lark", "definition": 'start: "a" /.+/'}
IN_CHATS = {"type": "custom", "custom": {"name": "patch", "description": "Applies a patch.", "format":
            {"type": "grammar", "grammar": {"syntax": "lark", "definition": FORM["definition"]}}}}  # fmt: skip


@pytest.mark.parametrize("choice", ["auto", {"type": "custom", "name": "patch"}], ids=str)
def test_the_grammar_of_a_custom_tool(composed: Composed, choice: Any) -> None:
    """vLLM sees a custom tool of free text, in chats its function; the constraint has the grammar."""
    tools = [NAMESPACE, {**CUSTOM, "format": FORM}, F]
    request = responses(tools=tools, tool_choice=choice)
    plain = responses(tools=[NAMESPACE, CUSTOM, F])
    assert construct_tool_dicts(request.tools, "auto") == construct_tool_dicts(plain.tools, "auto")
    spec = spec_of(composed.adjusted(request))
    forms, expected = {each.name: each.format for each in spec.tools}, TextFormat("lark", FORM["definition"])
    assert forms == ({} if isinstance(choice, dict) else {"crm__find": None, "f": None}) | {"patch": expected}
    assert set(request.vllm_xargs) == {"constrained_k2"}
    if isinstance(choice, dict):
        choice = {"type": "custom", "custom": {"name": "patch"}}
    asked = chat(tools=[G, IN_CHATS], tool_choice=choice)
    assert isinstance(asked, ChatCompletionRequest) and asked.tools is not None
    shown = {each["function"]["name"]: each["function"] for each in construct_tool_dicts(request.tools, "auto") or ()}
    shown["patch"]["parameters"]["properties"]["input"].pop("description")
    assert asked.tools[1].function.parameters == shown["patch"]["parameters"]
    (patch,) = (each for each in spec_of(composed.adjusted(asked)).tools if each.name == "patch")
    assert patch.format == expected


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({**FORM, "syntax": "ebnf"}, "tools[0].format.syntax: must be 'lark' or 'regex'"),
        ({**FORM, "definition": ""}, "tools[0].format.definition: must be a string"),
        ({**FORM, "definition": "start: /a(?=b)/"}, "tools[name='patch'].format.definition: the terminal '/a(?=b)/'"),
    ],
)
def test_a_wrong_grammar_is_refused_with_its_place(composed: Composed, form: Any, problem: str) -> None:
    with pytest.raises(VLLMValidationError, match=re.escape(problem)):
        composed.adjusted(responses(tools=[{**CUSTOM, "format": form}]))


def test_switched_off_a_grammar_is_for_vllm_to_refuse() -> None:
    body = {"tools": [{**CUSTOM, "format": FORM}], "vllm_xargs": {"constrained_k2": "off"}}
    assert rewritten({"input": "x", "model": "m"} | body, "input") == {"input": "x", "model": "m"} | body


@pytest.mark.parametrize("written", ["[]", "{", 7, '{"x": {}}'])
def test_a_client_that_writes_the_middlewares_field(composed: Composed, written: Any) -> None:
    request = responses(tools=[CUSTOM], vllm_xargs={"constrained_k2_text_formats": written})
    with pytest.raises(VLLMValidationError, match="must be formats by the numbers of their tools"):
        composed.adjusted(request)


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other["type"])
def test_where_no_function_is_left_no_call_is_allowed(composed: Composed, other: Any) -> None:
    request = composed.adjusted(responses(tools=[other], text={"format": {"type": "json_object"}}))
    assert (spec_of(request).tools, spec_of(request).max_calls) == ((), 0)


@pytest.mark.parametrize("fields", [{}, {"tools": [WEB]}], ids=str)
def test_without_functions_no_special_token_is_shown(composed: Composed, vocabulary: Vocabulary, fields: Any) -> None:
    """vLLM's text has Kimi's markers, whatever is asked for. Spelled in ordinary tokens a marker is text."""
    markers, spelled = vocabulary.format, "<|tool_calls_section_end|>"
    texts = [[markers.section_begin], vocabulary.encode("a"), [markers.call_end], vocabulary.encode(spelled)]
    for asked in (True, False):
        request = composed.adjusted(responses(skip_special_tokens=asked, **fields))

        def shown(ids: list[int], request: Any = request) -> str:
            return str(composed.tokenizer.decode(ids, skip_special_tokens=request.skip_special_tokens))

        ids = [markers.think_end, *itertools.chain(*texts)]
        whole = composed.whole(request, ids, shown(ids))[1]
        streamed = composed.stream(request, [(part, shown(part)) for part in ([markers.think_end], *texts)])[0][1]
        expected = f"a{spelled}" if asked else shown(ids[1:])
        assert whole.removeprefix("</think>") == streamed.removeprefix("</think>") == expected


def test_what_is_left_out_is_logged_once(composed: Composed, caplog: pytest.LogCaptureFixture) -> None:
    _warn_once.cache_clear()
    for _ in range(3):
        composed.adjusted(responses(tools=[WEB, F]))
    (line,) = (record.getMessage() for record in caplog.records if "web_search" in record.getMessage())
    assert "not in the prompt and not callable" in line


def flat(mode: str, *tools: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "mode": mode, "tools": [*tools]}


@pytest.mark.parametrize(
    ("choice", "names", "mode"),
    [
        ({"type": "custom", "name": "patch"}, ["patch"], "required"),
        ({"type": "function", "name": "find"}, ["crm__find"], "required"),
        (flat("auto", WEB, {"type": "function", "name": "f"}), ["f"], "auto"),
        (flat("required", {"type": "function", "name": "find"}), ["crm__find"], "required"),
        (flat("auto", WEB), ["f", "crm__find", "patch"], "none"),
        (None, ["f", "crm__find", "patch"], "auto"),
    ],
)
def test_choices_on_responses(composed: Composed, choice: Any, names: list[str], mode: str) -> None:
    request = responses(tools=[WEB, F, NAMESPACE, CUSTOM], tool_choice=choice)
    spec = spec_of(composed.adjusted(request))
    assert ([each.name for each in spec.tools], spec.choice) == (names, mode)


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("flat", [False, True])
def test_allowed_tools_on_chat_completions(composed: Composed, mode: str, flat: bool) -> None:
    choice = allowed(mode, "g")
    request = chat(tools=[TOOL, G], tool_choice=choice["allowed_tools"] | {"type": "allowed_tools"} if flat else choice)
    assert request.tool_choice == mode and len(request.tools) == 2  # the prompt has all tools
    composed.adjusted(request)
    assert (names_of(request), spec_of(request).choice) == (["g"], mode)
    assert request.to_sampling_params(10, {}).extra_args.keys() == {"constrained_k2"}


@pytest.mark.parametrize(
    ("request_of", "tools", "choice", "location"),
    [
        (responses, [WEB], "required", "tool_choice"),
        (responses, [WEB, F], flat("required", WEB), "tool_choice"),
        (responses, [F], flat("auto", {"type": "function", "name": "h"}), "tool_choice.tools[0]"),
        (chat, [TOOL], allowed("auto", "f", "h"), "tool_choice.allowed_tools.tools[1]"),
        (chat, [TOOL], allowed("none", "f"), "tool_choice.allowed_tools.mode"),
        (chat, [TOOL], allowed("auto"), "tool_choice.allowed_tools.tools"),
        (chat, [TOOL], {"type": "allowed_tools"}, "tool_choice.tools"),
        (chat, [TOOL], {"type": "allowed_tools", "allowed_tools": []}, "tool_choice.allowed_tools"),
    ],
)
def test_choices_that_are_refused(composed: Composed, request_of: Any, tools: Any, choice: Any, location: str) -> None:
    """They are wrong, or need a tool that is left out."""
    with pytest.raises(VLLMValidationError, match=re.escape(location)) as refused:
        composed.adjusted(request_of(tools=tools, tool_choice=choice))
    assert refused.value.parameter == location


def test_allowed_tools_of_a_request_that_is_not_constrained() -> None:
    with pytest.raises(VLLMValidationError, match="Invalid value for `function`"):
        chat(tool_choice=allowed("auto", "f"), vllm_xargs={"constrained_k2": "off"})


@pytest.mark.parametrize(("fields", "choice"), [({}, "auto"), ({"tools": None}, None)])
def test_a_choice_of_null_beside_tools_is_the_default(fields: Any, choice: str | None) -> None:
    request = chat(tool_choice=None, **fields)
    functions.set_default_choice(request)
    assert request.tool_choice == choice
