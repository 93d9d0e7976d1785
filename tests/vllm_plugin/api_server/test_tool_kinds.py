"""Tools of other kinds beside functions, and forms of ``tool_choice``, on vLLM's own request objects."""

import itertools
import json
import re
from typing import Annotated, Any

import pytest
from fastapi import Body, FastAPI
from fastapi.testclient import TestClient
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import construct_tool_dicts
from vllm.exceptions import VLLMValidationError

from constrained_k2 import Vocabulary
from constrained_k2.request.tools import TextFormat
from constrained_k2.vllm_plugin.api_server import functions
from constrained_k2.vllm_plugin.api_server.middleware import BodyMiddleware, rewritten
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
    functions._warn_once.cache_clear()
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


@pytest.mark.parametrize(
    ("tools", "choice", "location"),
    [
        ([WEB], "required", "tool_choice"),
        ([WEB, F], {"type": "web_search_preview"}, "tool_choice"),
        ([WEB, F], flat("required", WEB), "tool_choice"),
        ([F], flat("auto", {"type": "function", "name": "h"}), "tool_choice.tools[0]"),
    ],
)
def test_choices_that_need_what_is_left_out(composed: Composed, tools: Any, choice: Any, location: str) -> None:
    with pytest.raises(VLLMValidationError) as refused:
        composed.adjusted(responses(tools=tools, tool_choice=choice))
    assert refused.value.parameter == location


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
    ("choice", "location"),
    [
        (allowed("auto", "f", "h"), "tool_choice.allowed_tools.tools[1]"),
        (allowed("none", "f"), "tool_choice.allowed_tools.mode"),
        (allowed("auto"), "tool_choice.allowed_tools.tools"),
        ({"type": "allowed_tools"}, "tool_choice.tools"),
        ({"type": "allowed_tools", "allowed_tools": []}, "tool_choice.allowed_tools"),
    ],
)
def test_allowed_tools_that_are_wrong(composed: Composed, choice: Any, location: str) -> None:
    with pytest.raises(VLLMValidationError, match=re.escape(location)) as refused:
        composed.chat(tool_choice=choice)
    assert refused.value.parameter == location


def test_allowed_tools_of_a_request_that_is_not_constrained() -> None:
    with pytest.raises(VLLMValidationError, match="Invalid value for `function`"):
        chat(tool_choice=allowed("auto", "f"), vllm_xargs={"constrained_k2": "off"})


@pytest.mark.parametrize(("fields", "choice"), [({}, "auto"), ({"tools": None}, None)])
def test_a_choice_of_null_beside_tools_is_the_default(fields: Any, choice: str | None) -> None:
    request = chat(tool_choice=None, **fields)
    functions.set_default_choice(request)
    assert request.tool_choice == choice


def test_bodies_pass_the_middleware() -> None:
    app = FastAPI()

    @app.post("/v1/chat/completions")
    def chat_route(body: Annotated[ChatCompletionRequest, Body()]) -> Any:
        return {"choice": body.tool_choice, "xargs": body.vllm_xargs}

    @app.post("/v1/responses")
    def responses_route(body: Annotated[ResponsesRequest, Body()]) -> Any:
        return {"choice": body.tool_choice}

    @app.post("/v1/completions")
    def completions_route(body: Annotated[CompletionRequest, Body()]) -> Any:
        return {"beams": body.use_beam_search}

    app.add_middleware(BodyMiddleware)
    client = TestClient(app)
    choice = allowed("required", "g")
    body = {"messages": [], "tools": [TOOL, G], "tool_choice": choice}
    xargs = {"constrained_k2_allowed_tools": json.dumps(choice)}
    assert client.post("/v1/chat/completions", json=body).json() == {"choice": "required", "xargs": xargs}
    # A body in several pieces.
    pieces = iter([(text := json.dumps(body).encode())[:10], text[10:]])
    headers = {"content-type": "application/json"}
    assert client.post("/v1/chat/completions", content=pieces, headers=headers).json()["choice"] == "required"
    unset = {"input": "x", "tools": [F], "tool_choice": None}
    assert client.post("/v1/responses", json=unset).json() == {"choice": "auto"}
    beams = {"prompt": "x", "use_beam_search": True}
    assert client.post("/v1/completions", json=beams).json() == {"beams": True}
    constraint = {"constrained_k2": json.dumps({"tools": [F]})}
    streamed = {"prompt": "x", "stream": True}
    for bad, words in (
        (beams | {"vllm_xargs": constraint}, "use_beam_search: cannot be combined"),
        (streamed | {"vllm_xargs": {"constrained_k2": "{"}}, "must be JSON"),
        (streamed | {"vllm_xargs": {"constrained_k2_allowed_tools": "{}"}}, "allowed_tools"),
    ):
        refused = client.post("/v1/completions", json=bad)
        assert refused.status_code == 400 and words in refused.text
    good = streamed | {"vllm_xargs": constraint}
    assert client.post("/v1/completions", json=good).json() == {"beams": False}
    assert client.post("/v1/completions", json=good | {"n": "x"}).status_code == 422, "vLLM's own model refuses it"
    assert client.post("/v1/chat/completions", content=b"{", headers=headers).status_code == 422


@pytest.mark.parametrize("body", [None, [], "x", 1, {"messages": [], "vllm_xargs": 1}])
def test_bodies_that_are_none(body: Any) -> None:
    assert all(rewritten(body, field) == body for field in ("messages", "input", "prompt"))
