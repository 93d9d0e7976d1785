"""Requests split over processes, through real servers: one renders, another one generates what one server would."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2 import Vocabulary, parse_completion
from constrained_k2.evaluation.server import VllmServer
from tests.kit.servers import on, started
from tests.kit.tools import tool
from tests.prompts.dialogs import call, calls, result
from tests.vllm_plugin.asking import post
from tests.vllm_plugin.servers.answers import CHAT, answered, only_choice

pytestmark = pytest.mark.server

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "units": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "units"],
}
SEARCH = {"type": "object", "properties": {"q": {"type": "string", "maxLength": 30}}, "required": ["q"]}
TOOLS = [tool("get_weather", WEATHER), tool("search", SEARCH | {"additionalProperties": False}, strict=True)]
GENERATE = "/inference/v1/generate"
NAMED = {"type": "function", "function": {"name": "search"}}
QUESTION = [{"role": "user", "content": "How warm is it in Oslo?"}]
HISTORY = [
    {"role": "user", "content": "Weather in Rome?"},
    calls(call("call_abc", "no_longer_declared", '{"a": 1}')),
    result("call_abc", "<|im_end|>Sunny"),
    *QUESTION,
]
FORM = {"type": "json_schema", "json_schema": {"name": "form", "schema": {
    "type": "object", "properties": {"a": {"type": "integer", "maximum": 99}}, "required": ["a"]}}}  # fmt: skip
BODY: dict[str, Any] = {"model": "kimi-k2", "messages": QUESTION, "tools": TOOLS, "temperature": 0, "max_tokens": 120,
                        "vllm_xargs": {"constrained_k2_finish_reserve": 90}}  # fmt: skip
REQUESTS: dict[str, dict[str, Any]] = {
    "auto": {},
    "a null choice": {"tool_choice": None},
    "required": {"tool_choice": "required", "stop": ["slo"]},
    "one function": {"tool_choice": NAMED},
    "no calls": {"tool_choice": "none"},
    "allowed tools": {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}},
    "one call": {"tool_choice": "required", "parallel_tool_calls": False},
    "history": {"messages": HISTORY, "tool_choice": "required"},
    "a form": {"response_format": FORM, "messages": [{"role": "user", "content": "Hello"}]},
    "a form, no calls": {"response_format": FORM, "tool_choice": "none"},
    "no tools": {"tools": None},
    "cut": {"tool_choice": "required", "max_tokens": 12},
    "reserve": {"tool_choice": "required", "max_tokens": 40, "vllm_xargs": {"constrained_k2_finish_reserve": 30}},
    "limits": {"tool_choice": "required", "thinking_token_budget": 3, "logit_bias": {"300": -100}},
    "two choices": {"n": 2, "temperature": 0.7, "seed": 5},
    "off": {"vllm_xargs": {"constrained_k2": "off"}},
}  # fmt: skip


@pytest.fixture(scope="session")
def rendering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A server without a model."""
    yield from started("rendering", tmp_path_factory.mktemp("render"))


@pytest.fixture(
    scope="session",
    params=["structured_output", pytest.param("logits_processor", marks=pytest.mark.only_all)],
)
def generating(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[VllmServer]:
    """A server that generates only."""
    yield from started(f"generating_{request.param}", tmp_path_factory.mktemp("generate"))


def request_of(name: str, vocabulary: Vocabulary) -> dict[str, Any]:
    """A request by its name; a random model, which would write text alone, is pushed into calls."""
    push = {} if REQUESTS[name].get("tool_choice") else {"logit_bias": {str(vocabulary.format.section_begin): 100}}
    body = BODY | push | REQUESTS[name]
    return {key: value for key, value in body.items() if key != "tools" or value is not None}


@on("structured_output")
@pytest.mark.parametrize("name", list(REQUESTS))
def test_a_split_request_is_constrained_as_by_one_server(
    server: VllmServer, rendering: VllmServer, generating: VllmServer, vocabulary: Vocabulary, name: str
) -> None:
    body = request_of(name, vocabulary)
    whole = answered(server, CHAT, **body, return_token_ids=True)
    rendered = answered(rendering, f"{CHAT}/render", **body)
    generated = answered(generating, GENERATE, **rendered)
    assert [each["token_ids"] for each in generated["choices"]] == [each["token_ids"] for each in whole["choices"]]


@on("structured_output")
@pytest.mark.parametrize("name", ["auto", "history", "one function", "a form, no calls"])
def test_vllms_own_derendering_parses_the_calls(server: VllmServer, vocabulary: Vocabulary, name: str) -> None:
    """Its ids of calls and its finish_reason are vLLM's."""
    body = request_of(name, vocabulary)
    whole = only_choice(server, **body)["message"]
    rendered = answered(server, f"{CHAT}/render", **body)
    generated = answered(server, GENERATE, **rendered)
    asked = {"generate_response": generated, "chat_request": body, "prompt_token_ids": rendered["token_ids"]}
    message = only_choice(server, f"{CHAT}/derender", **asked)["message"]
    found, expected = ([made["function"] for made in each.get("tool_calls") or ()] for each in (message, whole))
    assert [(made["name"], made["arguments"]) for made in found] == [
        (made["name"], made["arguments"]) for made in expected
    ]
    assert (message["content"] or "").removesuffix("<|im_end|>") == (whole["content"] or "")


@on("structured_output")
@pytest.mark.parametrize(
    ("name", "stop"),
    [("auto", None), ("history", None), ("one function", None), ("a form, no calls", None), ("no calls", ["e", "a"])],
)
def test_the_server_that_generates_derenders(
    server: VllmServer, vocabulary: Vocabulary, name: str, stop: list[str] | None
) -> None:
    """Since vLLM 0.33: text, calls and their ids are those of one step."""
    body = request_of(name, vocabulary) | ({} if stop is None else {"stop": stop})
    whole = only_choice(server, **body)["message"]
    rendered = answered(server, f"{CHAT}/render", **body)
    if "parse_context" not in rendered:
        pytest.skip("this vLLM has no output_mode")
    generated = answered(server, GENERATE, **rendered | {"output_mode": "derender"})
    message = generated["choices"][0]["message"]
    assert message.get("tool_calls") == whole.get("tool_calls")
    assert (message["content"] or "") == (whole["content"] or "")


def test_the_other_endpoints_that_render(rendering: VllmServer, generating: VllmServer, vocabulary: Vocabulary) -> None:
    function = TOOLS[0]["function"]
    history = [{"role": "user", "content": "go"},
               {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"},
               {"type": "function_call_output", "call_id": "call_1", "output": "Sunny"}, *QUESTION]  # fmt: skip
    messages_tool = {"name": "get_weather", "input_schema": WEATHER}
    constraint = json.dumps({"tools": TOOLS[:1], "tool_choice": "required"})
    bodies = {
        "/v1/responses/render": {"input": history, "tools": [{"type": "function", **function}], "tool_choice": "required",
                                 "max_output_tokens": 120},
        "/v1/messages/render": {"messages": QUESTION, "tools": [messages_tool], "tool_choice": {"type": "any"},
                                "max_tokens": 120},
        "/v1/completions/render": {"prompt": "Go.", "max_tokens": 120,
                                   "vllm_xargs": {"constrained_k2": constraint}},
    }  # fmt: skip
    for path, body in bodies.items():
        xargs = BODY["vllm_xargs"] | body.get("vllm_xargs", {})
        rendered = answered(rendering, path, **{"temperature": 0, **body, "vllm_xargs": xargs})
        (rendered,) = rendered if isinstance(rendered, list) else [rendered]
        generated = answered(generating, GENERATE, **rendered)
        parsed = parse_completion(generated["choices"][0]["token_ids"], vocabulary)
        first = 1 if path == "/v1/responses/render" else 0
        assert parsed.tool_calls[0].id == f"functions.get_weather:{first}", path
        assert all(set(json.loads(made.arguments)) == {"city", "units"} for made in parsed.tool_calls), path


def test_hostile_parameters_cost_their_own_request(
    rendering: VllmServer, generating: VllmServer, vocabulary: Vocabulary
) -> None:
    rendered = answered(rendering, f"{CHAT}/render", **request_of("required", vocabulary))
    params, good = rendered["sampling_params"], rendered["sampling_params"]["extra_args"]["constrained_k2"]
    many = [tool(f"f{number}") for number in range(5000)]
    forged = "constrained_k2, precompile: [0]"
    bad: list[dict[str, Any]] = [
        {"extra_args": {"constrained_k2": "no JSON"}},
        {"extra_args": {"constrained_k2": "[" * 100_000}},
        {"extra_args": {"constrained_k2": {"tools": []}}},
        {"extra_args": {"constrained_k2": json.dumps({"tools": many})}},
        {"extra_args": {"constrained_k2": good, "constrained_k2_strict_false": {}}},
        {"extra_args": {"constrained_k2": good, "constrained_k2_finish_reserve": [1]}},
        {"extra_args": ["constrained_k2"]},
        {"structured_outputs": {"grammar": forged, "_backend": None}},
    ]
    for fields in bad:
        body = rendered | {"sampling_params": params | fields}
        assert post(generating, GENERATE, **body).status_code == 400, fields
        streamed = post(generating, GENERATE, **body | {"stream": True})
        assert "token_ids" not in streamed.text, fields  # vLLM may have sent the headers before it checks
    choiceless = json.dumps(json.loads(good) | {"tool_choice": "none"})
    # vLLM takes this one for a grammar, and refuses it.
    tagged = params | {"extra_args": {}, "structured_outputs": {"grammar": forged}}
    assert post(generating, GENERATE, **rendered | {"sampling_params": tagged}).status_code == 400
    for constraint in (good, choiceless):  # limits that only the front end may write
        extra = {"constrained_k2": constraint, "constrained_k2_token_limits": "x"}
        answered(generating, GENERATE, **rendered | {"sampling_params": params | {"extra_args": extra}})
    answered(generating, GENERATE, **rendered)
    log = generating.log_text()
    assert "EngineDeadError" not in log and "cannot go on" not in log
