"""Repairs in a real vLLM server: what reaches the prompt, and the index that comes next."""

import ast
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from constrained_k2 import Vocabulary, find_faults
from constrained_k2.cli import main
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.prompts import PromptRenderer
from tests.kit.servers import on
from tests.kit.tools import tool
from tests.prompts.dialogs import USER, call, calls, result
from tests.vllm_plugin.asking import CHAT, WEATHER, answered, chat, post

pytestmark = [pytest.mark.server, on("logits_processor")]

EXAMPLES = Path(__file__).parents[3] / "examples"
OFF: dict[str, Any] = {"vllm_xargs": {"constrained_k2_repair": "off"}}
UUID = "0b7e6f1a-6d0c-4f3e-9c1e-1d2f3a4b5c6d"
GIVEN_IDS = ["call_abc", "search:2", "functions_Read_0", "chatcmpl-tool-81c2", UUID, ""]
HI = [{"role": "user", "content": "hi"}]


def prompt_ids(server: VllmServer, **body: Any) -> list[int]:
    ids: list[int] = answered(server, "/tokenize", **body)["tokens"]
    return ids


def chat_prompt_ids(server: VllmServer, **body: Any) -> list[int]:
    """The prompt of a chat, as its answer tells it."""
    ids: list[int] = answered(server, CHAT, **body, max_tokens=1, return_token_ids=True)["prompt_token_ids"]
    return ids


def asking(text: str) -> dict[str, Any]:
    """A request with a text in every place where someone else than the model writes, and where its text comes back."""
    function = WEATHER["function"] | {"description": f"Ask {text} about it"}
    properties = {text: {"type": "string", "description": text, "enum": [text]}}
    other = tool("other", {"type": "object", "properties": properties}, description=text)
    return {
        "messages": [
            {"role": "system", "content": f"Be {text}"},
            {"role": "user", "content": f"{text}{text}", "name": f"a{text}"},
            calls(call("x", "get_weather", json.dumps({"city": text}))),
            result("x", [{"type": "text", "text": text[:2]}, {"type": "text", "text": text[2:]}]),
            {"role": "user", "content": [{"type": "text", "text": f"So? {text}"}]},
        ],
        "tools": [{"type": "function", "function": function}, other],
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
    messages: list[dict[str, Any]] = [USER]
    for number, given in enumerate(GIVEN_IDS):
        made = calls(call(given, "get_weather", json.dumps({"city": f"C{number}"})))
        messages += [made | {"content": ""}, result(given, f"weather of C{number}")]
    text = vocabulary.decode(prompt_ids(server, messages=messages, tools=[WEATHER]))
    for number in range(len(GIVEN_IDS)):
        call_id = f"functions.get_weather:{number}"
        assert f'<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{{"city": "C{number}"}}' in text
        assert f"## Return of {call_id}\nweather of C{number}<|im_end|>" in text
    assert not find_faults(text, {"messages": messages})
    seen = chat(server, messages=messages, tools=[WEATHER], tool_choice="required", max_tokens=500)
    assert seen.calls[0][0] == f"functions.get_weather:{len(GIVEN_IDS)}"
    off = vocabulary.decode(prompt_ids(server, messages=messages, tools=[WEATHER], **OFF))
    assert "call_abc" in off


def test_the_server_and_render_prompt_make_the_same_prompt(server: VllmServer) -> None:
    renderer = PromptRenderer.from_pretrained(server.model)
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    bare = {"type": "function", "function": {"name": "bare"}}
    for body in (
        {"messages": HI},
        {"messages": HI, "tools": [strict, bare]},
        {"messages": [{"role": "developer", "content": [{"type": "text", "text": ""}]}, {"role": "user", "content": ""}]},
        asking("<|im_end|>"),
    ):  # fmt: skip
        rendered = renderer.render(body)
        assert list(rendered.ids) == prompt_ids(server, **body)
        assert not find_faults(rendered.text, rendered.body)


def test_arguments_that_are_objects_are_taken(server: VllmServer) -> None:
    """By chats, whose bodies are rewritten before vLLM's models read them; those of /tokenize are not."""
    given, written = (
        [USER, calls(call("x", "get_weather", arguments)) | {"content": ""}]
        for arguments in ({"city": "x"}, '{"city": "x"}')
    )
    assert chat_prompt_ids(server, messages=given) == chat_prompt_ids(server, messages=written)
    answer = post(server, "/tokenize", messages=given)
    assert answer.status_code == 400
    assert "messages[1].tool_calls: has a part of an unknown form" in answer.json()["error"]["message"]
    assert "function.arguments: Input should be a valid string" in answer.json()["error"]["message"]


def test_no_content_is_printed_as_a_python_list(server: VllmServer, vocabulary: Vocabulary) -> None:
    template = (
        "{% for m in messages %}{% for part in m['content'] %}{% endfor %}"  # so vLLM takes it for one that reads parts
        "<|im_user|>{{ m.role }}<|im_middle|>{{ m.content }}<|im_end|>{% endfor %}<|im_assistant|>assistant<|im_middle|>"
    )
    body = {"messages": [*HI, {"role": "user", "content": ""}], "chat_template": template}
    corrected, off = prompt_ids(server, **body), prompt_ids(server, **body, **OFF)
    assert not find_faults(corrected, vocabulary=vocabulary)
    assert vocabulary.decode(corrected).count("<|im_middle|><|im_end|>") == 1
    assert [fault.kind for fault in find_faults(off, vocabulary=vocabulary)] == ["content list"] * 2


def test_render_compares_with_the_server(
    server: VllmServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = tmp_path / "request.json"
    for xargs, code in (({}, 0), (OFF, 1)):
        request.write_text(json.dumps({"messages": [{"role": "user", "content": "a[EOS]"}]} | xargs))
        assert main(["render", str(request), "--tokenizer", str(server.model), "--diff", server.url]) == code
    assert "The server renders the same prompt." in capsys.readouterr().err


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
