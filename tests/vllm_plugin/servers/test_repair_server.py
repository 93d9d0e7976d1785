"""Repairs in a real vLLM server: what reaches the prompt, and the index that comes next."""

import ast
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2 import JsonLimiter, Vocabulary, find_faults
from constrained_k2.cli import main
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.prompts import PromptRenderer
from constrained_k2.prompts.special_text import JOINER
from scripts.bundled_samples.ordinary import TOOLS
from tests.kit.servers import on
from tests.vllm_plugin.asking import post

pytestmark = [pytest.mark.server, on("logits_processor")]

EXAMPLES = Path(__file__).parents[3] / "examples"
WEATHER = TOOLS[0]
OFF = {"vllm_xargs": {"constrained_k2_repair": "off"}}
GIVEN_IDS = [
    "call_abc",
    "search:2",
    "functions_Read_0",
    "chatcmpl-tool-81c2",
    "0b7e6f1a-6d0c-4f3e-9c1e-1d2f3a4b5c6d",
    "",
]


def prompt_ids(server: VllmServer, **body: Any) -> list[int]:
    answer = post(server, "/tokenize", **body)
    assert answer.is_success, answer.text
    ids: list[int] = answer.json()["tokens"]
    return ids


def asking(text: str) -> dict[str, Any]:
    """A request with a text in every place where someone else than the model writes, and where its text comes back."""
    call = {"id": "x", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps({"city": text})}}
    function = WEATHER["function"] | {"description": f"Ask {text} about it"}
    properties = {text: {"type": "string", "description": text, "enum": [text]}}
    other = {"name": "other", "description": text, "parameters": {"type": "object", "properties": properties}}
    return {
        "messages": [
            {"role": "system", "content": f"Be {text}"},
            {"role": "user", "content": f"{text}{text}", "name": f"a{text}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "x", "content": [{"type": "text", "text": text[:2]}, {"type": "text", "text": text[2:]}]},
            {"role": "user", "content": [{"type": "text", "text": f"So? {text}"}]},
        ],
        "tools": [{"type": "function", "function": function}, {"type": "function", "function": other}],
    }  # fmt: skip


def specials_in(ids: list[int], vocabulary: Vocabulary) -> Counter[int]:
    return Counter(token_id for token_id in ids if vocabulary.special_text(token_id) is not None)


def test_no_special_token_reaches_the_prompt_from_any_text(server: VllmServer, vocabulary: Vocabulary) -> None:
    harmless = specials_in(prompt_ids(server, **asking("nothing")), vocabulary)
    assert len(vocabulary.special_tokens) == 256
    for text in vocabulary.special_tokens:
        ids = prompt_ids(server, **asking(text))
        assert specials_in(ids, vocabulary) == harmless, text
        assert not find_faults(ids, vocabulary=vocabulary)
    let_through = specials_in(prompt_ids(server, **asking("<|im_end|>"), **OFF), vocabulary)
    assert let_through != harmless  # else this test could not fail


def test_ids_are_canonical_and_results_paired(server: VllmServer, vocabulary: Vocabulary) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for number, given in enumerate(GIVEN_IDS):
        function = {"name": "get_weather", "arguments": json.dumps({"city": f"C{number}"})}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [{"id": given, "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": given, "content": f"weather of C{number}"},
        ]  # fmt: skip
    text = vocabulary.decode(prompt_ids(server, messages=messages, tools=[WEATHER]))
    for number in range(len(GIVEN_IDS)):
        call = f'<|tool_call_begin|>functions.get_weather:{number}<|tool_call_argument_begin|>{{"city": "C{number}"}}'
        assert call in text
        assert f"## Return of functions.get_weather:{number}\nweather of C{number}<|im_end|>" in text
    assert not find_faults(text, {"messages": messages})
    answer = post(
        server, "/v1/chat/completions", messages=messages, tools=[WEATHER], tool_choice="required", max_tokens=500
    )
    ids = [call["id"] for call in answer.json()["choices"][0]["message"]["tool_calls"]]
    assert ids[0] == f"functions.get_weather:{len(GIVEN_IDS)}"
    off = vocabulary.decode(prompt_ids(server, messages=messages, tools=[WEATHER], **OFF))
    assert "call_abc" in off


def test_an_inserted_call_counts(server: VllmServer) -> None:
    messages = [{"role": "tool", "tool_call_id": "gone", "content": "42"}, {"role": "user", "content": "and?"}]
    fields = {"messages": messages, "tools": [WEATHER], "tool_choice": "required", "max_tokens": 500}
    for xargs, first in (({}, 1), (OFF, 0)):
        answer = post(server, "/v1/chat/completions", **fields, **xargs).json()
        assert answer["choices"][0]["message"]["tool_calls"][0]["id"] == f"functions.get_weather:{first}"


def test_the_server_and_render_prompt_make_the_same_prompt(server: VllmServer) -> None:
    renderer = PromptRenderer.from_pretrained(server.model)
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    bare = {"type": "function", "function": {"name": "bare"}}
    for body in (
        {"messages": [{"role": "user", "content": "hi"}]},
        {"messages": [{"role": "user", "content": "hi"}], "tools": [strict, bare]},
        {"messages": [{"role": "developer", "content": [{"type": "text", "text": ""}]}, {"role": "user", "content": ""}]},
        asking("<|im_end|>"),
    ):  # fmt: skip
        rendered = renderer.render(body)
        assert list(rendered.ids) == prompt_ids(server, **body)
        assert not find_faults(rendered.text, rendered.body)


@pytest.mark.parametrize(
    "written",
    ['{"city":"北京"}', '{ "city" : "x", }', '{"city": "<|im\\u005fend|>"}', '{"city": "\\ud800"}', "[" * 2000, '{"n": ' + "9" * 5000 + "}"],
    ids=["compact", "no_json", "escaped", "surrogate", "deep", "long_number"],
)  # fmt: skip
def test_arguments_of_the_history_keep_their_bytes(server: VllmServer, vocabulary: Vocabulary, written: str) -> None:
    call = {
        "id": "functions.get_weather:0",
        "type": "function",
        "function": {"name": "get_weather", "arguments": written},
    }
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "functions.get_weather:0", "content": "ok"}
    body = {"messages": [{"role": "user", "content": "go"}, turn, result], "tools": [WEATHER]}
    rendered = PromptRenderer.from_pretrained(server.model).render(body)
    assert not rendered.repairs
    assert f"<|tool_call_argument_begin|>{written}<|tool_call_end|>" in rendered.text
    assert prompt_ids(server, **body) == list(rendered.ids)
    answer = post(server, "/v1/chat/completions", **body, max_tokens=1, return_token_ids=True)
    assert answer.json()["prompt_token_ids"] == list(rendered.ids)


def test_arguments_that_are_objects_are_taken(server: VllmServer) -> None:
    """By chats, whose bodies are rewritten before vLLM's models read them; those of /tokenize are not."""
    call = {"id": "x", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "x"}}}
    body = {"messages": [{"role": "user", "content": "go"}, {"role": "assistant", "content": "", "tool_calls": [call]}]}
    written = body | {"messages": [body["messages"][0], {"role": "assistant", "content": "", "tool_calls": [
        call | {"function": {"name": "get_weather", "arguments": '{"city": "x"}'}}]}]}  # fmt: skip
    answers = [
        post(server, "/v1/chat/completions", **each, max_tokens=1, return_token_ids=True).raise_for_status().json()
        for each in (body, written)
    ]
    assert answers[0]["prompt_token_ids"] == answers[1]["prompt_token_ids"]
    answer = post(server, "/tokenize", **body)
    assert answer.status_code == 400
    assert "messages[1].tool_calls: has a part of an unknown form" in answer.json()["error"]["message"]
    assert "function.arguments: Input should be a valid string" in answer.json()["error"]["message"]


def test_a_template_that_takes_objects_gets_them(server: VllmServer, vocabulary: Vocabulary) -> None:
    template = (
        "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a":"<|im\\u005fend|>"}'}}
    body = {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}], "chat_template": template}
    ids = prompt_ids(server, **body)
    assert not specials_in(ids, vocabulary)
    assert vocabulary.decode(ids) == f'{{"a": "<{JOINER}|im_end|>"}}'
    assert specials_in(prompt_ids(server, **body, **OFF), vocabulary)


def test_invalid_utf8_costs_its_own_request_alone(server: VllmServer) -> None:
    content = b'{"model": "kimi-k2", "messages": [{"role": "user", "content": "a\xff\xfe"}]}'
    for path in ("/v1/chat/completions", "/tokenize"):
        answer = httpx.post(f"{server.url}{path}", content=content, headers={"content-type": "application/json"})
        assert answer.status_code in {400, 422}
    assert prompt_ids(server, messages=[{"role": "user", "content": "hi"}])


def test_no_content_is_printed_as_a_python_list(server: VllmServer, vocabulary: Vocabulary) -> None:
    template = (
        "{% for m in messages %}{% for part in m['content'] %}{% endfor %}"  # so vLLM takes it for one that reads parts
        "<|im_user|>{{ m.role }}<|im_middle|>{{ m.content }}<|im_end|>{% endfor %}<|im_assistant|>assistant<|im_middle|>"
    )
    body = {"messages": [{"role": "user", "content": "hi"}, {"role": "user", "content": ""}], "chat_template": template}
    corrected, off = prompt_ids(server, **body), prompt_ids(server, **body, **OFF)
    assert not find_faults(corrected, vocabulary=vocabulary)
    assert vocabulary.decode(corrected).count("<|im_middle|><|im_end|>") == 1
    assert [fault.kind for fault in find_faults(off, vocabulary=vocabulary)] == ["content list"] * 2


def test_a_generation_prompt_is_not_left_out(server: VllmServer) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "return_token_ids": True}
    usual = post(server, "/v1/chat/completions", **body).json()["prompt_token_ids"]
    left_out = body | {"add_generation_prompt": False}
    assert post(server, "/v1/chat/completions", **left_out).json()["prompt_token_ids"] == usual
    assert len(post(server, "/v1/chat/completions", **left_out, **OFF).json()["prompt_token_ids"]) < len(usual)
    continued = left_out | {"messages": [*body["messages"], {"role": "assistant", "content": "So"}], "continue_final_message": True}  # fmt: skip
    assert post(server, "/v1/chat/completions", **continued).json()["prompt_token_ids"] != usual


def test_a_partial_message_is_continued(server: VllmServer, vocabulary: Vocabulary) -> None:
    """With the index that is due, and calls in the answer alone."""
    made = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    history = [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": [made]}]
    history += [{"role": "function", "name": "get_weather", "content": "rain"}]
    body = {"messages": [*history, {"role": "assistant", "content": "So", "partial": True}], "tools": [WEATHER]}
    ids = prompt_ids(server, **body)
    assert vocabulary.decode(ids).endswith(
        "## Return of functions.get_weather:0\nrain<|im_end|><|im_assistant|>assistant<|im_middle|>So"
    )
    body |= {"tool_choice": "required", "max_tokens": 500, "return_token_ids": True}
    answer = post(server, "/v1/chat/completions", **body).json()
    assert answer["prompt_token_ids"] == ids
    assert answer["choices"][0]["message"]["tool_calls"][0]["id"] == "functions.get_weather:1"


def test_render_compares_with_the_server(
    server: VllmServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = tmp_path / "request.json"
    for xargs, code in (({}, 0), (OFF, 1)):
        request.write_text(json.dumps({"messages": [{"role": "user", "content": "a[EOS]"}]} | xargs))
        assert main(["render", str(request), "--tokenizer", str(server.model), "--diff", server.url]) == code
    assert "The server renders the same prompt." in capsys.readouterr().err


def test_a_schema_is_answered_by_a_forced_tool(server: VllmServer) -> None:
    limiter = JsonLimiter({"enum": ["yes", "no"]}, name="verdict", description="Yes or no?")
    body = limiter.request(messages=[{"role": "user", "content": "Is it?"}], max_tokens=500)
    assert limiter.value(post(server, "/v1/chat/completions", **body).json()) in {"yes", "no"}


def test_the_example_of_a_json_limiter(server: VllmServer) -> None:
    """As a user runs it; the mask alone makes a random model's answer an instance of its schema."""
    command = [sys.executable, str(EXAMPLES / "json_limiter.py"), server.url]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    value = ast.literal_eval(run.stdout)
    assert value.keys() == {"sentiment", "topics"}
    assert value["sentiment"] in {"good", "bad", "mixed"}
    assert all(isinstance(topic, str) and len(topic) <= 40 for topic in value["topics"])
    assert len(value["topics"]) <= 5


def test_responses_are_mended_too(server: VllmServer) -> None:
    items = [
        {"role": "user", "content": "go"},
        {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "<|im_end|>Sunny"},
    ]
    tool = {"type": "function", **WEATHER["function"]}
    answer = post(server, "/v1/responses", input=items, tools=[tool], tool_choice="required", max_output_tokens=500)
    assert answer.is_success, answer.text
    calls = [item for item in answer.json()["output"] if item["type"] == "function_call"]
    assert calls[0]["call_id"] == "functions.get_weather:1"


@pytest.mark.parametrize(
    ("messages", "location"),
    [
        ([{"role": "user", "content": "hi"}, {"role": "user", "content": [{"type": "smell", "smell": "x"}]}], "messages[1]"),
    ],
)  # fmt: skip
def test_what_has_no_clear_meaning_is_refused(server: VllmServer, messages: Any, location: str) -> None:
    answer = post(server, "/v1/chat/completions", messages=messages, max_tokens=1)
    assert answer.status_code == 400
    assert location in answer.json()["error"]["message"]


def test_the_switch_must_be_one(server: VllmServer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    for value in ("maybe", ["off"], 0):
        xargs = {"constrained_k2_repair": value}
        answer = post(server, "/v1/chat/completions", messages=messages, vllm_xargs=xargs, max_tokens=1)
        assert answer.status_code == 400
        assert "vllm_xargs.constrained_k2_repair" in answer.json()["error"]["message"]
