"""``constrained-k2 explain``: against a server, and without one."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from constrained_k2 import Vocabulary
from tests.cli.conftest import Run
from tests.evaluation.fake_endpoint import FakeEndpoint
from tests.explain.turns import CALL, UNITS, ids_of, obj, tool

BODY = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool(obj(["u"], u=UNITS))]}
TURN = f'{CALL}{{"u":"celsius"}}<|tool_call_end|><|tool_calls_section_end|><|im_end|>'
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def request(tmp_path: Path, body: Any = BODY) -> str:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(body))
    return str(path)


def test_a_server_is_asked_and_its_answer_shown(tmp_path: Path, tokenizer: Path, run: Run) -> None:
    page, vocabulary = tmp_path / "out.html", Vocabulary.from_pretrained(tokenizer)
    ids, prompt = ids_of(TURN, vocabulary), [*map(ord, "the prompt")]
    sent = BODY | {"stream": True, "stream_options": {}, "n": 3, "vllm_xargs": {"x": 1}, "fake": {"ids": ids}}
    with FakeEndpoint("vllm") as server:
        # Without the constraint the model would have written another token.
        server.wanted[len(prompt) + len(ids_of(f'{CALL}{{"u":"', vocabulary))] = vocabulary.encode("K")[0]
        command = ["--tokenizer", str(tokenizer), "--html", str(page)]
        said = run("explain", server.url, request(tmp_path, sent), *command)
    assert said.code == 0
    asked = {name: value for name, value in sent.items() if name != "stream_options"}
    assert server.bodies == [asked | {"model": "kimi-k2", "return_token_ids": True, "stream": False, "n": 1}]
    off = {"model": "kimi-k2", "max_tokens": 1, "temperature": 0, "vllm_xargs": {"constrained_k2": "off"}}
    assert server.sent_back == off | {"prompt": [*prompt, *ids], "prompt_logprobs": 20}
    assert re.search(r"act +/u +enum +1 +0 +\"K\" → .* 90% +90%", said.out)
    assert "[K→" in said.out and "<del>K</del>" in page.read_text()


@pytest.mark.parametrize(
    ("path", "answer", "text"),
    [
        (CHAT, {}, "no choices"),
        (CHAT, {"choices": []}, "no choices"),
        (CHAT, {"choices": [{"message": {}}]}, "no token ids"),
        (CHAT, {"prompt_token_ids": [1], "choices": [{"token_ids": [10**6]}]}, "another tokenizer"),
        (COMPLETIONS, {"choices": [{"prompt_logprobs": [None]}]}, "no probability"),
        (COMPLETIONS, {"choices": []}, "no probability"),
    ],
)
def test_a_server_that_does_not_tell(
    path: str, answer: Any, text: str, tmp_path: Path, tokenizer: Path, run: Run
) -> None:
    with FakeEndpoint("vllm") as server:
        server.replaced[path] = 200, json.dumps(answer)
        said = run("explain", server.url, request(tmp_path), "--tokenizer", str(tokenizer))
    assert said.code == 2 and text in said.err


def test_without_a_server(tmp_path: Path, tokenizer: Path, run: Run) -> None:
    completion, page = tmp_path / "answer.txt", tmp_path / "out.html"
    command = ["explain", "--offline", request(tmp_path), "--tokenizer", str(tokenizer)]
    command += ["--completion", str(completion)]
    completion.write_text(f'{CALL}{{"u":"KELVIN"}}')
    said = run(*command, "--html", str(page))
    assert said.code == 1
    assert all(text in said.out for text in ("/u", "enum", "refused"))
    assert "<del>" in page.read_text()
    completion.write_text(f'{CALL}{{"u":"celsius"}}')
    said = run(*command)
    assert said.code == 0 and "No token was overridden or contested." in said.out
    for text, code in (("[1, 2", 2), ("[-1]", 2), ("7", 2), ("[1.5]", 2), ("[1, 2]", 0)):
        completion.write_text(text)
        assert run(*command, "--ids").code == code
