"""Requests split over processes, through real servers: one renders, another one generates what one server would.

Those of Kimi K3 are split over one server. So are those whose engine core adopts them.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from constrained_k2 import ToolCall, Vocabulary, parse_completion
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.prompts.xtml import render_turn
from scripts.bundled_samples import ordinary
from tests.kit.k3_turns import read_valid
from tests.kit.servers import on, started
from tests.kit.tools import tool
from tests.prompts.dialogs import call, calls, result
from tests.vllm_plugin.asking import CHAT, answered, only_choice, post

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


def check_split(server: VllmServer, rendering: VllmServer, generating: VllmServer, body: dict[str, Any]) -> Any:
    """Two servers write what one does; the first choice of the one."""
    whole = answered(server, CHAT, **body, return_token_ids=True)["choices"]
    generated = answered(generating, GENERATE, **answered(rendering, f"{CHAT}/render", **body))["choices"]
    assert [each["token_ids"] for each in generated] == [each["token_ids"] for each in whole]
    return whole[0]


@on("structured_output")
@pytest.mark.parametrize("name", list(REQUESTS))
def test_a_split_request_is_constrained_as_by_one_server(
    server: VllmServer, rendering: VllmServer, generating: VllmServer, vocabulary: Vocabulary, name: str
) -> None:
    check_split(server, rendering, generating, request_of(name, vocabulary))


@on("structured_output")
@pytest.mark.parametrize("name", ["auto", "history", "one function", "a form, no calls", "no calls"])
def test_derendering(server: VllmServer, vocabulary: Vocabulary, name: str) -> None:
    """Elsewhere the ids of calls are vLLM's; the server that generates derenders since vLLM 0.33, as in one step."""
    body = request_of(name, vocabulary) | ({"stop": ["e", "a"]} if name == "no calls" else {})
    whole = only_choice(server, **body)["message"]
    rendered = answered(server, f"{CHAT}/render", **body)
    if name != "no calls":
        generated = answered(server, GENERATE, **rendered)
        asked = {"generate_response": generated, "chat_request": body, "prompt_token_ids": rendered["token_ids"]}
        message = only_choice(server, f"{CHAT}/derender", **asked)["message"]
        found, expected = ([made["function"] for made in each.get("tool_calls") or ()] for each in (message, whole))
        assert [{"name": made["name"], "arguments": made["arguments"]} for made in found] == expected
        assert (message["content"] or "").removesuffix("<|im_end|>") == (whole["content"] or "")
    if "parse_context" in rendered:
        message = only_choice(server, GENERATE, **rendered | {"output_mode": "derender"})["message"]
        assert message.get("tool_calls") == whole.get("tool_calls")
        assert (message["content"] or "") == (whole["content"] or "")


def generated_elsewhere(
    rendering: VllmServer, generating: VllmServer, function: dict[str, Any], **fields: Any
) -> Iterator[tuple[str, list[int], list[int]]]:
    """The path of each other endpoint that renders, and the ids of its prompt and of what is generated from it.

    Each requires a call of the function; the history of Responses has one.
    """
    history = [{"role": "user", "content": "go"},
               {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"},
               {"type": "function_call_output", "call_id": "call_1", "output": "Sunny"}, *QUESTION]  # fmt: skip
    messages_tool = {"name": function["name"], "input_schema": function["parameters"]}
    constraint = json.dumps({"tools": [{"type": "function", "function": function}], "tool_choice": "required"})
    limit = fields.pop("max_tokens")
    bodies = {
        "/v1/responses/render": {"input": history, "tools": [{"type": "function", **function}], "tool_choice": "required",
                                 "max_output_tokens": limit},
        "/v1/messages/render": {"messages": QUESTION, "tools": [messages_tool], "tool_choice": {"type": "any"},
                                "max_tokens": limit},
        "/v1/completions/render": {"prompt": "Go.", "max_tokens": limit, "vllm_xargs": {"constrained_k2": constraint}},
    }  # fmt: skip
    for path, body in bodies.items():
        xargs = {"constrained_k2_finish_reserve": limit * 3 // 4} | body.get("vllm_xargs", {})
        rendered = answered(rendering, path, **body | fields | {"vllm_xargs": xargs})
        (rendered,) = rendered if isinstance(rendered, list) else [rendered]
        generated = answered(generating, GENERATE, **rendered)
        yield path, rendered["token_ids"], generated["choices"][0]["token_ids"]


def test_the_other_endpoints_that_render(rendering: VllmServer, generating: VllmServer, vocabulary: Vocabulary) -> None:
    fields = {"temperature": 0, "max_tokens": 120}
    for path, _, ids in generated_elsewhere(rendering, generating, TOOLS[0]["function"], **fields):
        parsed = parse_completion(ids, vocabulary)
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


PING = tool("ping", {"type": "object", "additionalProperties": False})
K3_TOOLS = [ordinary.TOOLS[0], PING]
K3_BODY: dict[str, Any] = {
    "messages": QUESTION, "tools": K3_TOOLS, "max_tokens": 1200, "temperature": 1.0, "seed": 1,
    "thinking_token_budget": 8, "vllm_xargs": {"constrained_k2_finish_reserve": 900},
}  # fmt: skip
K3_HISTORY = [*QUESTION, calls(call("x", "ping", "{}")) | {"content": ""}, result("x", "<|open|>pong")]
K3_CHOSEN: dict[str, dict[str, Any]] = {
    "auto": {},
    "required": {"tool_choice": "required"},
    "one function": {"tool_choice": {"type": "function", "function": {"name": "ping"}}},
    "one call": {"tool_choice": "required", "parallel_tool_calls": False},
    "without thinking": {"tool_choice": "required", "chat_template_kwargs": {"thinking": False}},
    "history": {"messages": K3_HISTORY, "tool_choice": "required"},
    "a form": {"response_format": FORM},
}
K3_OTHERS: dict[str, dict[str, Any]] = {
    "no calls": {"tool_choice": "none", "max_tokens": 60},
    "a form, no calls": {"response_format": FORM, "tool_choice": "none"},
    "cut": {"tool_choice": "required", "max_tokens": 40, "vllm_xargs": {}},
    "off": {"vllm_xargs": {"constrained_k2": "off"}, "thinking_token_budget": None, "max_tokens": 60},
    "no tools": {"tools": None, "max_tokens": 60},
}


@on("kimi_k3_structured_output")
@pytest.mark.parametrize("name", [*K3_CHOSEN, *K3_OTHERS, "script"])
def test_a_split_request_of_kimi_k3(server: VllmServer, k3_vocabulary: Vocabulary, name: str) -> None:
    body = K3_BODY | (K3_CHOSEN | K3_OTHERS).get(name, {})
    body = {key: value for key, value in body.items() if key != "tools" or value is not None}
    if name == "script":
        spoken = [ToolCall("get_weather", 1, '{"city": "Oslo <|close|>", "days": 3}'), ToolCall("ping", 2, "{}")]
        script = render_turn(spoken, k3_vocabulary, response="So", reasoning="Hm.")
        body |= {"vllm_xargs": {"script": script}, "thinking_token_budget": None}
    choice = check_split(server, server, server, body)
    if name in K3_OTHERS and name != "a form, no calls":
        return
    turn = read_valid(choice["token_ids"], k3_vocabulary, K3_TOOLS, in_reasoning=name != "without thinking")
    ids_of_calls = [made["id"] for made in choice["message"].get("tool_calls", [])]
    first = 1 if name == "history" else 0
    assert ids_of_calls == [f"functions.{made[0]}:{at}" for at, made in enumerate(turn.calls, first)]
    assert turn.calls or "form" in name or name == "auto"


@on("kimi_k3_structured_output")
def test_the_other_endpoints_of_kimi_k3(server: VllmServer, k3_vocabulary: Vocabulary) -> None:
    fields = {"temperature": 1.0, "seed": 1, "max_tokens": 1200}
    for path, prompt, ids in generated_elsewhere(server, server, K3_TOOLS[0]["function"], **fields):
        thinks = k3_vocabulary.opens_reasoning(prompt)
        assert thinks == ("completions" not in path)
        turn = read_valid(ids, k3_vocabulary, K3_TOOLS, in_reasoning=thinks)
        assert turn.calls and not turn.text, path


# With vLLM's own tool parser the engine core adopts the requests.
def adopted(server: VllmServer, **fields: Any) -> list[int]:
    ids: list[int] = only_choice(server, **K3_BODY | {"return_token_ids": True} | fields)["token_ids"]
    return ids


@on("kimi_k3_adopted")
@pytest.mark.parametrize("name", [name for name in K3_CHOSEN if name != "a form"])
def test_adopted_requests_write_valid_calls(server: VllmServer, k3_vocabulary: Vocabulary, name: str) -> None:
    for seed in range(3):
        ids = adopted(server, **K3_CHOSEN[name], seed=seed)
        turn = read_valid(ids, k3_vocabulary, K3_TOOLS, in_reasoning=name != "without thinking")
        assert name == "auto" or (turn.calls and not turn.text)
        assert name != "one function" or {call[0] for call in turn.calls} == {"ping"}
        assert name != "one call" or len(turn.calls) == 1


@on("kimi_k3_adopted")
def test_adopted_requests_in_a_form_and_without_calls(server: VllmServer, k3_vocabulary: Vocabulary) -> None:
    turn = read_valid(adopted(server, response_format=FORM), k3_vocabulary, K3_TOOLS)
    assert turn.calls or json.loads(turn.text)["a"] <= 99
    ids = adopted(server, tool_choice="none", max_tokens=80)
    assert not parse_completion(ids, k3_vocabulary, level="tolerant", in_reasoning=True).tool_calls
    log = server.log_text()
    assert "is left to vLLM" not in log and "adopt prompt" in log
