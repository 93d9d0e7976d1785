"""Through a real server on the backend route: every endpoint that takes tools, and the fields that it accepts together with them."""

import json
import re
from typing import Any

import httpx
import jsonschema
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2 import Vocabulary, parse_completion
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.evaluation.server_metrics import parse_counters, total
from scripts.bundled_samples.ordinary import TOOLS
from tests.kit.servers import on
from tests.vllm_plugin.asking import MESSAGES, Call, called, chat, chat_choices, claude, post, respond
from tests.vllm_plugin.servers.answers import CHAT, only_choice, said

pytestmark = [pytest.mark.server, on("structured_output")]

SCHEMAS = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in TOOLS}
FLAT = [{"type": "function", "name": name, "parameters": schema} for name, schema in SCHEMAS.items()]
CLAUDES = [{"name": name, "input_schema": schema or {"type": "object"}} for name, schema in SCHEMAS.items()]
# So that whatever a random model begins comes to its end.
ENDING: dict[str, Any] = {"vllm_xargs": {"constrained_k2_finish_reserve": 400}}
REQUIRED: Any = ENDING | {"tools": list(TOOLS), "tool_choice": "required", "max_tokens": 900, "temperature": 1.0}


def check_calls(calls: list[Call], first: int = 0) -> None:
    """Each ``(id, name, arguments)`` is a declared call, in order."""
    assert calls
    for index, (call_id, name, arguments) in enumerate(calls, first):
        assert call_id == f"functions.{name}:{index}"
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])


# Anthropic's messages


def ask_claude(server: VllmServer, *, stream: bool, **fields: Any) -> tuple[str, list[Call]]:
    """The stop reason and the calls of a messages request."""
    seen = claude(server, stream=stream, **REQUIRED | {"tools": CLAUDES, "tool_choice": {"type": "any"}} | fields)
    return seen.reason, seen.calls


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_messages(server: VllmServer, stream: bool) -> None:
    reason, calls = ask_claude(server, stream=stream)
    assert reason == "tool_use"
    check_calls(calls)


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_choices(server: VllmServer, stream: bool) -> None:
    for _ in range(3):
        _, calls = ask_claude(server, stream=stream, tool_choice={"type": "any", "disable_parallel_tool_use": True})
        check_calls(calls)
        assert len(calls) == 1
    named = {"type": "tool", "name": "convert_currency", "disable_parallel_tool_use": True}
    reason, calls = ask_claude(server, stream=stream, tool_choice=named)
    check_calls(calls)
    assert (reason, [name for _, name, _ in calls]) == ("tool_use", ["convert_currency"])
    _, calls = ask_claude(server, stream=stream, tool_choice={"type": "none"}, max_tokens=60)
    assert not calls
    reason, calls = ask_claude(server, stream=stream, stop_sequences=["}", '"', "functions"])
    check_calls(calls)


def test_anthropics_history_is_counted(server: VllmServer) -> None:
    """Their ids are of another form; the calls go on counting from them all the same."""
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_01A", "name": "get_weather", "input": {"city": "a", "days": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_01A", "content": "sunny"}]},
    ]  # fmt: skip
    _, calls = ask_claude(server, stream=False, messages=messages)
    check_calls(calls, first=1)


def test_anthropics_requests_close_too_and_are_refused_too(server: VllmServer) -> None:
    for stream in (False, True):
        xargs = {"constrained_k2_finish_reserve": 96}
        reason, calls = ask_claude(server, stream=stream, max_tokens=110, vllm_xargs=xargs)
        assert reason == "tool_use"
        check_calls(calls)
    tool = {"name": "f", "strict": True, "input_schema": {"type": "object", "not": {}}}
    answer = post(server, "/v1/messages", max_tokens=9, messages=MESSAGES, tools=[tool], tool_choice={"type": "any"})
    assert answer.status_code == 400
    assert "no value satisfies" in answer.text


# Responses


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_responses(server: VllmServer, choice: Any, stream: bool) -> None:
    body = {"input": "Weather?", "tools": FLAT, "tool_choice": choice, "max_output_tokens": 900, "temperature": 1.0}
    response = respond(server, stream=stream, **body, **ENDING)
    assert response["status"] == "completed"
    check_calls(called(response))


# What is refused


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"use_beam_search": True}, "use_beam_search"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": "("}, "tool_choice": "auto"}, "structured_outputs.regex"),
        ({"vllm_xargs": {"constrained_k2_finish_reserve": 5000}}, "constrained_k2_finish_reserve"),
        ({"vllm_xargs": {"constrained_k2_finish_reserve": "all"}}, "constrained_k2_finish_reserve"),
    ],
)
def test_what_is_refused_beside_tools(server: VllmServer, extra: Any, field: str, stream: bool) -> None:
    without_reserve = {name: value for name, value in REQUIRED.items() if name != "vllm_xargs"}
    answer = post(server, CHAT, messages=MESSAGES, stream=stream, **without_reserve | extra)
    assert answer.status_code == 400
    assert re.search(field, answer.json()["error"]["message"])


# An answer in the form asked for

REPORT = {
    "type": "object",
    "properties": {"summary": {"type": "string", "maxLength": 9}, "certain": {"type": "boolean"}},
    "required": ["certain"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "name": "report", "schema": REPORT, "strict": True}
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "report", "schema": REPORT, "strict": True}}


def answer_of_chat(server: VllmServer, choice: str, *, stream: bool) -> tuple[str, list[Call]]:
    body = REQUIRED | {"tool_choice": choice, "response_format": RESPONSE_FORMAT}
    seen = chat(server, stream=stream, **body)
    return seen.content, seen.calls


def answer_of_responses(server: VllmServer, choice: str, *, stream: bool) -> tuple[str, list[Call]]:
    body = {"input": "Weather?", "tools": FLAT, "tool_choice": choice, "max_output_tokens": 900, "temperature": 1.0}
    answer = respond(server, stream=stream, text={"format": FORM}, **body, **ENDING)
    assert answer["text"]["format"]["schema"] == REPORT
    return said(answer), called(answer)


def answer_of_claude(server: VllmServer, choice: str, *, stream: bool) -> tuple[str, list[Call]]:
    form = {"format": {"type": "json_schema", "schema": REPORT}}
    body = REQUIRED | {"tools": CLAUDES, "tool_choice": {"type": choice}}
    seen = claude(server, stream=stream, output_config=form, **body)
    return seen.content, seen.calls


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "none"])
@pytest.mark.parametrize(
    "ask", [answer_of_chat, answer_of_responses, answer_of_claude], ids=["chat", "responses", "messages"]
)
def test_a_call_or_an_answer_in_the_form_asked_for(server: VllmServer, ask: Any, choice: str, stream: bool) -> None:
    content, calls = ask(server, choice, stream=stream)
    if calls:
        assert choice == "auto" and not content
        check_calls(calls)
    else:
        jsonschema.validate(json.loads(content), REPORT)


# Fields accepted together with tools


def test_the_same_seed_gives_the_same_answer(server: VllmServer) -> None:
    answers = [chat(server, **REQUIRED, seed=seed).calls for seed in (1, 1, 2, 2)]
    for calls in answers:
        check_calls(calls)
    assert answers[0] == answers[1] != answers[2] == answers[3]


def test_several_choices_of_a_seed(server: VllmServer) -> None:
    fields: dict[str, Any] = {"seed": 3, "n": 3, "logprobs": True, "top_logprobs": 2}
    first, second = ([seen.calls for seen in chat_choices(server, **REQUIRED, **fields)] for _ in range(2))
    assert first == second
    assert len({json.dumps(calls) for calls in first}) == 3
    for calls in first:
        check_calls(calls)


@pytest.mark.parametrize("limits", [
    {"thinking_token_budget": 5}, {"bad_words": ["0", "1", "}"]}, {"allowed_token_ids": [5, 6, 7]},
    {"thinking_token_budget": 0, "bad_words": ["a"], "allowed_token_ids": list(range(900))},
])  # fmt: skip
def test_limits_on_tokens(server: VllmServer, limits: Any) -> None:
    """Also a thinking budget, which vLLM alone refuses on a server without a reasoning parser."""
    check_calls(chat(server, **REQUIRED, **limits).calls)
    assert chat(server, stream=True, **REQUIRED, **limits).reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_an_anthropic_thinking_budget(server: VllmServer, stream: bool) -> None:
    reason, calls = ask_claude(
        server, stream=stream, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1500
    )
    assert reason == "tool_use"
    check_calls(calls)


def test_a_bias_cannot_push_past_the_mask(server: VllmServer, vocabulary: Vocabulary) -> None:
    markers = vocabulary.format
    wanted = dict.fromkeys((str(markers.turn_end), str(vocabulary.encode("a")[0])), 100)
    for bias in (wanted, {str(markers.section_begin): -100, str(markers.call_end): -100}):
        check_calls(chat(server, **REQUIRED, logit_bias=bias).calls)


def test_a_prompt_from_the_cache_is_constrained_alike(server: VllmServer) -> None:
    def hits() -> float:
        name = "vllm:prefix_cache_hits_total"
        return total(parse_counters(httpx.get(f"{server.url}/metrics", timeout=60).text, name), name)

    messages = [{"role": "user", "content": "A prompt of some length, again and again. " * 12}]
    before = hits()
    first, second = (chat(server, **REQUIRED, messages=messages, seed=5).calls for _ in range(2))
    assert hits() > before
    check_calls(first)
    assert first == second


def test_a_lora_request_is_constrained(server: VllmServer) -> None:
    base, tuned = (chat(server, **REQUIRED, model=model, seed=6).calls for model in ("kimi-k2", "tuned"))
    check_calls(base)
    check_calls(tuned)
    assert base != tuned, "the adapter changes nothing: it is not in use"


def test_completions_close_in_time(server: VllmServer, vocabulary: Vocabulary) -> None:
    spec = json.dumps({"tools": list(TOOLS), "tool_choice": "required"})
    body = {"prompt": "hi", "max_tokens": 110, "temperature": 1.0, "return_token_ids": True,
            "vllm_xargs": {"constrained_k2": spec, "constrained_k2_finish_reserve": 96}}  # fmt: skip
    for seed in range(4):
        choice = only_choice(server, "/v1/completions", **body, seed=seed)
        assert choice["finish_reason"] == "stop"
        found = parse_completion(choice["token_ids"], vocabulary)
        check_calls([(call.id, call.name, call.arguments) for call in found.tool_calls])
