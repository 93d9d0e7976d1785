"""Through a real server on the backend route: every endpoint that takes tools, and the fields that it accepts together with them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2 import Vocabulary, parse_completion
from constrained_k2.evaluation.server import BACKEND_FLAGS, VllmServer
from constrained_k2.testing import build_model
from scripts.bundled_samples.ordinary import TOOLS
from tests.vllm_plugin.asking import MESSAGES
from tests.warm import WarmServer

pytestmark = pytest.mark.server

SCHEMAS = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in TOOLS}
RANK = 4
ENDING = {
    "vllm_xargs": {"constrained_k2_finish_reserve": 400}
}  # so that whatever a random model begins comes to its end


def write_adapter(directory: Path, model: Path) -> Path:
    """A LoRA adapter with weights large enough to change what is written."""
    config = json.loads((model / "config.json").read_text())
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    width = config["num_attention_heads"] * config["head_dim"]
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for layer in range(layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(RANK, width, generator=generator)
        weights[f"{name}.lora_B.weight"] = torch.randn(hidden, RANK, generator=generator) * 5
    directory.mkdir()
    save_file(weights, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["o_proj"], "bias": "none"})
    )
    return directory


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    directory = tmp_path_factory.mktemp("server")
    model = build_model(directory / "model", arch="llama")
    adapter = write_adapter(directory / "adapter", model)
    flags = (
        *BACKEND_FLAGS,
        "--enable-lora",
        "--max-lora-rank=8",
        "--lora-modules",
        f"tuned={adapter}",
        "--enable-prefix-caching",
    )
    with WarmServer(model, flags, log=directory / "server.log") as started:
        yield started


def create(client: openai.OpenAI, **fields: Any) -> Any:
    given: dict[str, Any] = {"model": "kimi-k2", "messages": MESSAGES, "tools": list(TOOLS), "tool_choice": "required",
                             "max_tokens": 900, "temperature": 1.0, "extra_body": ENDING}  # fmt: skip
    return client.chat.completions.create(**(given | fields))


def post(server: VllmServer, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json={"model": "kimi-k2"} | body, timeout=120)


def events(server: VllmServer, path: str, **body: Any) -> list[dict[str, Any]]:
    answer = post(server, path, stream=True, **body)
    assert answer.is_success, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def check_calls(calls: list[tuple[str, str, str]], first: int = 0) -> None:
    """Each ``(id, name, arguments)`` is a declared call, in order."""
    assert calls
    for index, (call_id, name, arguments) in enumerate(calls, first):
        assert call_id == f"functions.{name}:{index}"
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])


# Anthropic's messages


def claude(server: VllmServer, *, stream: bool, **fields: Any) -> tuple[str, list[tuple[str, str, str]]]:
    """The stop reason and the calls of a messages request."""
    tools = [{"name": tool["function"]["name"], "description": "A tool.",
              "input_schema": tool["function"].get("parameters", {"type": "object"})} for tool in TOOLS]  # fmt: skip
    body = (
        {"max_tokens": 900, "messages": MESSAGES, "tools": tools, "tool_choice": {"type": "any"}, "temperature": 1.0}
        | ENDING
        | fields
    )
    if not stream:
        answer = post(server, "/v1/messages", **body)
        assert answer.is_success, answer.text
        blocks = [block for block in answer.json()["content"] if block["type"] == "tool_use"]
        calls = [(block["id"], block["name"], json.dumps(block["input"])) for block in blocks]
        return answer.json()["stop_reason"], calls
    seen = events(server, "/v1/messages", **body)
    started = {event["index"]: event["content_block"] for event in seen if event["type"] == "content_block_start"}
    pieces: dict[int, str] = {}
    for event in seen:
        if event["type"] == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
            pieces[event["index"]] = pieces.get(event["index"], "") + event["delta"]["partial_json"]
    calls = [
        (block["id"], block["name"], pieces.get(at) or "{}")
        for at, block in started.items()
        if block["type"] == "tool_use"
    ]
    (reason,) = [event["delta"]["stop_reason"] for event in seen if event["type"] == "message_delta"]
    return reason, calls


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_messages(server: VllmServer, stream: bool) -> None:
    reason, calls = claude(server, stream=stream)
    assert reason == "tool_use"
    check_calls(calls)


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_choices(server: VllmServer, stream: bool) -> None:
    for _ in range(3):
        _, calls = claude(server, stream=stream, tool_choice={"type": "any", "disable_parallel_tool_use": True})
        check_calls(calls)
        assert len(calls) == 1
    named = {"type": "tool", "name": "convert_currency", "disable_parallel_tool_use": True}
    reason, calls = claude(server, stream=stream, tool_choice=named)
    check_calls(calls)
    assert (reason, [name for _, name, _ in calls]) == ("tool_use", ["convert_currency"])
    _, calls = claude(server, stream=stream, tool_choice={"type": "none"}, max_tokens=60)
    assert not calls
    reason, calls = claude(server, stream=stream, stop_sequences=["}", '"', "functions"])
    check_calls(calls)


def test_anthropics_history_is_counted(server: VllmServer) -> None:
    """Their ids are of another form; the calls go on counting from them all the same."""
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_01A", "name": "get_weather", "input": {"city": "a", "days": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_01A", "content": "sunny"}]},
    ]  # fmt: skip
    _, calls = claude(server, stream=False, messages=messages)
    check_calls(calls, first=1)


def test_anthropics_requests_close_too_and_are_refused_too(server: VllmServer) -> None:
    for stream in (False, True):
        xargs = {"constrained_k2_finish_reserve": 96}
        reason, calls = claude(server, stream=stream, max_tokens=110, vllm_xargs=xargs)
        assert reason == "tool_use"
        check_calls(calls)
    tool = {"name": "f", "input_schema": {"type": "object", "not": {}}}
    answer = post(server, "/v1/messages", max_tokens=9, messages=MESSAGES, tools=[tool], tool_choice={"type": "any"})
    assert answer.status_code == 400
    assert "no value satisfies" in answer.text


# Responses


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_responses(server: VllmServer, choice: Any, stream: bool) -> None:
    tools = [{"type": "function", "name": tool["function"]["name"], "parameters": SCHEMAS[tool["function"]["name"]]}
             for tool in TOOLS]  # fmt: skip
    body = {
        "input": "Weather?",
        "tools": tools,
        "tool_choice": choice,
        "max_output_tokens": 900,
        "temperature": 1.0,
    } | ENDING
    if stream:
        seen = events(server, "/v1/responses", **body)
        items = [event["item"] for event in seen if event["type"] == "response.output_item.done"]
        written: dict[str, str] = {}
        for event in seen:
            if event["type"] == "response.function_call_arguments.delta":
                written[event["item_id"]] = written.get(event["item_id"], "") + event["delta"]
        assert [written[item["id"]] for item in items if item["type"] == "function_call"] == [
            item["arguments"] for item in items if item["type"] == "function_call"
        ]
        assert seen[-1]["type"] == "response.completed"
    else:
        answer = post(server, "/v1/responses", **body)
        assert answer.is_success, answer.text
        items = answer.json()["output"]
        assert answer.json()["status"] == "completed"
    check_calls(
        [(item["call_id"], item["name"], item["arguments"]) for item in items if item["type"] == "function_call"]
    )


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
def test_what_is_refused_beside_tools(client: openai.OpenAI, extra: Any, field: str, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match=field):
        create(client, extra_body=extra, stream=stream)


# An answer in the form asked for

REPORT = {
    "type": "object",
    "properties": {"summary": {"type": "string", "maxLength": 9}, "certain": {"type": "boolean"}},
    "required": ["certain"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "name": "report", "schema": REPORT, "strict": True}
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "report", "schema": REPORT, "strict": True}}


def answer_of_chat(server: VllmServer, choice: str, *, stream: bool) -> tuple[str, list[tuple[str, str, str]]]:
    body = {"messages": MESSAGES, "tools": list(TOOLS), "tool_choice": choice, "max_tokens": 900, "temperature": 1.0,
            "response_format": RESPONSE_FORMAT} | ENDING  # fmt: skip
    if not stream:
        message = post(server, "/v1/chat/completions", **body).raise_for_status().json()["choices"][0]["message"]
        return message["content"] or "", [
            (call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
        ]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-") as client:
        body.pop("vllm_xargs")
        with client.chat.completions.stream(model="kimi-k2", **body, extra_body=ENDING) as pieces:  # type: ignore[arg-type]
            message = pieces.get_final_completion().choices[0].message
    calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return message.content or "", calls


def answer_of_responses(server: VllmServer, choice: str, *, stream: bool) -> tuple[str, list[tuple[str, str, str]]]:
    tools = [{"type": "function", "name": tool["function"]["name"], "parameters": SCHEMAS[tool["function"]["name"]]}
             for tool in TOOLS]  # fmt: skip
    body = {"input": "Weather?", "tools": tools, "tool_choice": choice, "max_output_tokens": 900, "temperature": 1.0,
            "text": {"format": FORM}} | ENDING  # fmt: skip
    if stream:
        answer = events(server, "/v1/responses", **body)[-1]["response"]
    else:
        answer = post(server, "/v1/responses", **body).raise_for_status().json()
    assert answer["text"]["format"]["schema"] == REPORT
    texts = [part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"]]
    calls = [item for item in answer["output"] if item["type"] == "function_call"]
    return "".join(texts), [(item["call_id"], item["name"], item["arguments"]) for item in calls]


def answer_of_claude(server: VllmServer, choice: str, *, stream: bool) -> tuple[str, list[tuple[str, str, str]]]:
    tools = [{"name": tool["function"]["name"], "input_schema": SCHEMAS[tool["function"]["name"]]} for tool in TOOLS]
    body = {"messages": MESSAGES, "tools": tools, "tool_choice": {"type": choice}, "max_tokens": 900, "temperature": 1.0,
            "output_config": {"format": {"type": "json_schema", "schema": REPORT}}} | ENDING  # fmt: skip
    texts, calls = "", []
    if stream:
        for event in events(server, "/v1/messages", **body):
            texts += event.get("delta", {}).get("text", "")
            block = event.get("content_block", {})
            if block.get("type") == "tool_use":
                calls.append((block["id"], block["name"], ""))
            if "partial_json" in event.get("delta", {}):
                calls[-1] = (*calls[-1][:2], calls[-1][2] + event["delta"]["partial_json"])
        return texts, calls
    for block in post(server, "/v1/messages", **body).raise_for_status().json()["content"]:
        texts += block.get("text", "")
        if block["type"] == "tool_use":
            calls.append((block["id"], block["name"], json.dumps(block["input"])))
    return texts, calls


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


def test_completions_with_the_form_of_an_answer(server: VllmServer) -> None:
    spec = {"tools": list(TOOLS), "tool_choice": "none", "response_format": RESPONSE_FORMAT}
    xargs = {"constrained_k2": json.dumps(spec)} | ENDING["vllm_xargs"]
    answer = post(server, "/v1/completions", prompt="hi", max_tokens=900, temperature=1.0, vllm_xargs=xargs)
    jsonschema.validate(json.loads(answer.raise_for_status().json()["choices"][0]["text"]), REPORT)


# Fields accepted together with tools


def calls_of(choice: Any) -> list[tuple[str, str, str]]:
    return [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls]


def test_the_same_seed_gives_the_same_answer(client: openai.OpenAI) -> None:
    answers = [calls_of(create(client, seed=seed).choices[0]) for seed in (1, 1, 2, 2)]
    for calls in answers:
        check_calls(calls)
    assert answers[0] == answers[1] != answers[2] == answers[3]


def test_several_choices_of_a_seed(client: openai.OpenAI) -> None:
    first, second = (create(client, seed=3, n=3, logprobs=True, top_logprobs=2).choices for _ in range(2))
    assert [calls_of(choice) for choice in first] == [calls_of(choice) for choice in second]
    assert len({json.dumps(calls_of(choice)) for choice in first}) == 3
    for choice in first:
        check_calls(calls_of(choice))
        assert choice.logprobs.content


@pytest.mark.parametrize("limits", [
    {"thinking_token_budget": 5}, {"bad_words": ["0", "1", "}"]}, {"allowed_token_ids": [5, 6, 7]},
    {"thinking_token_budget": 0, "bad_words": ["a"], "allowed_token_ids": list(range(900))},
])  # fmt: skip
def test_limits_on_tokens(client: openai.OpenAI, server: VllmServer, limits: Any) -> None:
    """Also a thinking budget, which vLLM alone refuses on a server without a reasoning parser."""
    check_calls(calls_of(create(client, extra_body=ENDING | limits).choices[0]))
    body = {"messages": MESSAGES, "tools": list(TOOLS), "tool_choice": "required", "max_tokens": 900}
    seen = events(server, "/v1/chat/completions", **(body | ENDING | limits))
    assert seen[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_an_anthropic_thinking_budget(server: VllmServer, stream: bool) -> None:
    reason, calls = claude(server, stream=stream, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1500)
    assert reason == "tool_use"
    check_calls(calls)


def test_a_bias_cannot_push_past_the_mask(client: openai.OpenAI, vocabulary: Vocabulary) -> None:
    markers = vocabulary.format
    wanted = dict.fromkeys((str(markers.turn_end), str(vocabulary.encode("a")[0])), 100)
    for bias in (wanted, {str(markers.section_begin): -100, str(markers.call_end): -100}):
        answer = create(client, logit_bias=bias)
        check_calls(calls_of(answer.choices[0]))


def metric(server: VllmServer, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def test_a_prompt_from_the_cache_is_constrained_alike(server: VllmServer, client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "A prompt of some length, again and again. " * 12}]
    hits = metric(server, "vllm:prefix_cache_hits_total")
    first, second = (calls_of(create(client, messages=messages, seed=5).choices[0]) for _ in range(2))
    assert metric(server, "vllm:prefix_cache_hits_total") > hits
    check_calls(first)
    assert first == second


def test_a_lora_request_is_constrained(client: openai.OpenAI) -> None:
    base, tuned = (create(client, model=model, seed=6).choices[0] for model in ("kimi-k2", "tuned"))
    for choice in (base, tuned):
        check_calls(calls_of(choice))
    assert calls_of(base) != calls_of(tuned), "the adapter changes nothing: it is not in use"


def test_completions_close_in_time(client: openai.OpenAI, vocabulary: Vocabulary) -> None:
    spec = json.dumps({"tools": list(TOOLS), "tool_choice": "required"})
    for seed in range(4):
        answer: Any = client.completions.create(
            model="kimi-k2", prompt="hi", max_tokens=110, seed=seed, temperature=1.0,
            extra_body={"vllm_xargs": {"constrained_k2": spec, "constrained_k2_finish_reserve": 96}, "return_token_ids": True},
        )  # fmt: skip
        assert answer.choices[0].finish_reason == "stop"
        found = parse_completion(answer.choices[0].token_ids, vocabulary)
        check_calls([(call.id, call.name, call.arguments) for call in found.tool_calls])
