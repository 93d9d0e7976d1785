"""The prompts of a real server of Kimi K3, through its HTTP endpoints, are those of this package."""

import json
from pathlib import Path
from typing import Any

import pytest

from constrained_k2 import Vocabulary
from constrained_k2.cli import main
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.prompts.xtml import XtmlRenderer
from tests.kit.servers import on
from tests.kit.tools import tool
from tests.prompts.dialogs import USER, call, calls, result
from tests.vllm_plugin.asking import CHAT, answered

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
    "required": {"messages": [USER], "tools": [TOOL], "tool_choice": "required"},
    "history": {"messages": HISTORY, "tools": [TOOL]},
    "history without thinking": {"messages": HISTORY, "chat_template_kwargs": {"thinking": False}},
    "a form, no effort": {"messages": [USER], "response_format": FORM, "reasoning_effort": "none"},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_prompts(server: VllmServer, name: str) -> None:
    found = answered(server, f"{CHAT}/render", **REQUESTS[name])
    rendered = XtmlRenderer(Vocabulary.from_pretrained(server.model)).render(REQUESTS[name])
    assert not rendered.repairs
    assert found["token_ids"] == list(rendered.ids)


@pytest.mark.parametrize("differs", [False, True])
def test_the_command_compares_prompts(
    server: VllmServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], differs: bool
) -> None:
    path = tmp_path / "request.json"
    other = {"messages": [calls(call("a", "search", "no JSON")), result("a")]}
    path.write_text(json.dumps({"model": "kimi-k2"} | (other if differs else REQUESTS["history"])))
    assert main(["render", str(path), "--tokenizer", str(server.model), "--diff", server.url]) == differs
    said = capsys.readouterr().err
    if differs:
        assert '-<|open|>message role="assistant"' in said and "<|open|>json type=" in said
    else:
        assert "The server renders the same prompt." in said
