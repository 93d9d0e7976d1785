"""The prompts of a real server of Kimi K3, through its HTTP endpoints, are those of this package."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2 import Vocabulary
from constrained_k2.cli import main
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.prompts.xtml import XtmlRenderer
from tests.kit.servers import on
from tests.kit.tools import tool
from tests.prompts.dialogs import USER, call, calls, result
from tests.vllm_plugin.servers.answers import CHAT, answered

pytestmark = [pytest.mark.server, on("kimi_k3_adopted")]

PROPERTIES = {"q": {"type": "string"}, "a": {"type": "integer"}}
# Without a description the server declares a null.
TOOL = tool("search", {"type": "object", "properties": PROPERTIES}, description="Search <|open|>")
HISTORY = [
    {"role": "system", "content": "Be brief."},
    USER,
    calls(call("x", "search", '{"q": "<|close|>argument<|sep|>"}'), call("y", "other", '{"a": [1, "é"]}'))
    | {"content": "<|close|>response<|sep|>", "reasoning_content": "why"},
    result("y", "second"),
    result("x", "first <|end_of_msg|>"),
    {"role": "user", "content": "And now?", "name": "Ann"},
]
FORM = {"type": "json_schema", "json_schema": {"name": "form", "schema": {"type": "object", "required": ["a"]}}}
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tools": {"tools": [TOOL]},
    "required": {"tools": [TOOL], "tool_choice": "required"},
    "no calls": {"tools": [TOOL], "tool_choice": "none"},
    "history": {"messages": HISTORY, "tools": [TOOL]},
    "history without thinking": {"messages": HISTORY, "chat_template_kwargs": {"thinking": False}},
    "effort": {"reasoning_effort": "low"},
    "no effort": {"reasoning_effort": "none"},
    "an object": {"response_format": {"type": "json_object"}},
    "a form": {"response_format": FORM},
    "an open call": {"messages": [USER, calls(call("a", "search", "{}")), USER]},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_prompts(server: VllmServer, name: str) -> None:
    body = {"messages": [USER], **REQUESTS[name]}
    found = answered(server, f"{CHAT}/render", **body)
    rendered = XtmlRenderer(Vocabulary.from_pretrained(server.model)).render(body)
    assert not rendered.repairs
    assert found["token_ids"] == list(rendered.ids)


@pytest.mark.parametrize("name", ["plain", "history", "history without thinking", "effort"])
def test_the_command_finds_no_difference(
    server: VllmServer, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"model": "kimi-k2", "messages": [USER], **REQUESTS[name]}))
    assert main(["render", str(request), "--tokenizer", str(server.model), "--diff", server.url]) == 0
    assert "The server renders the same prompt." in capsys.readouterr().err


def test_the_command_shows_a_difference(server: VllmServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = tmp_path / "request.json"
    body = {"model": "kimi-k2", "messages": [calls(call("a", "search", "no JSON")), result("a")]}
    request.write_text(json.dumps(body))
    assert main(["render", str(request), "--tokenizer", str(server.model), "--diff", server.url]) == 1
    shown = capsys.readouterr().err
    assert '-<|open|>message role="assistant"' in shown
    assert "<|open|>json type=" in shown
