"""``constrained-k2 explain``: against a server, and without one."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from constrained_k2 import Vocabulary
from tests.cli.conftest import Run
from tests.evaluation.fake_server import Fake
from tests.explain.test_places import CALL, UNITS, obj
from tests.explain.turns import ids_of, tool

BODY = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool(obj(["u"], u=UNITS))]}


TURN = f'{CALL}{{"u":"celsius"}}<|tool_call_end|><|tool_calls_section_end|><|im_end|>'


class Answering(Fake):
    """Answers one turn; without the constraint the model would have written another token at its ``position``."""

    def __init__(self, vocabulary: Vocabulary, **replaced: Any) -> None:
        super().__init__()
        self.prompt_ids = ids_of("<|im_assistant|>assistant<|im_middle|>", vocabulary)
        self.turn = ids_of(TURN, vocabulary)
        self.position = len(ids_of(f'{CALL}{{"u":"', vocabulary))
        self.wanted = vocabulary.encode("K")[0]
        self.bodies: list[Any] = []
        self.replaced = replaced

    def chat(self, body: Any) -> Any:
        self.bodies.append(body)
        answer = {"prompt_token_ids": self.prompt_ids, "choices": [{"message": {}, "token_ids": self.turn}]}
        return self.replaced.get("chat", answer)

    def completion(self, body: Any) -> Any:
        self.bodies.append(body)
        found: list[Any] = [None, *({str(token): {"logprob": -0.5}} for token in body["prompt"][1:])]
        found[len(self.prompt_ids) + self.position][str(self.wanted)] = {"logprob": -0.25}
        return self.replaced.get("completion", {"choices": [{"prompt_logprobs": found}]})


def request(tmp_path: Path, body: Any = BODY) -> str:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(body))
    return str(path)


def test_a_server_is_asked_and_its_answer_shown(tmp_path: Path, tokenizer: Path, run: Run) -> None:
    page, vocabulary = tmp_path / "out.html", Vocabulary.from_pretrained(tokenizer)
    command = ["--tokenizer", str(tokenizer), "--html", str(page)]
    with Answering(vocabulary) as server:
        sent = BODY | {"stream": True, "stream_options": {}, "n": 3, "vllm_xargs": {"x": 1}}
        said = run("explain", server.url, request(tmp_path, sent), *command)
    assert said.code == 0
    asked, back = server.bodies
    assert asked["tools"] == BODY["tools"] and asked["model"] and asked["vllm_xargs"] == {"x": 1}
    assert (asked["return_token_ids"], asked["stream"], asked["n"]) == (True, False, 1)
    assert "stream_options" not in asked
    assert back["prompt"] == [*server.prompt_ids, *server.turn] and back["prompt_logprobs"] == 20
    assert back["vllm_xargs"] == {"constrained_k2": "off"}
    assert re.search(r"act +/u +enum +1 +0 +\"K\" → .* 78% +78%", said.out)
    assert "[K→" in said.out and "<del>K</del>" in page.read_text()


@pytest.mark.parametrize(
    ("replaced", "text"),
    [
        ({"chat": {}}, "no choices"),
        ({"chat": {"choices": []}}, "no choices"),
        ({"chat": {"choices": [{"message": {}}]}}, "no token ids"),
        ({"chat": {"prompt_token_ids": [1], "choices": [{"token_ids": [10**6]}]}}, "another tokenizer"),
        ({"completion": {"choices": [{"prompt_logprobs": [None]}]}}, "no probability"),
        ({"completion": {"choices": []}}, "no probability"),
    ],
)
def test_a_server_that_does_not_tell(
    replaced: dict[str, Any], text: str, tmp_path: Path, tokenizer: Path, run: Run
) -> None:
    with Answering(Vocabulary.from_pretrained(tokenizer), **replaced) as server:
        said = run("explain", server.url, request(tmp_path), "--tokenizer", str(tokenizer))
    assert said.code == 2 and text in said.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "expected two sources"),
        (["http://localhost:1"], "expected two sources"),
        (["--offline", "a.json", "b.json"], "expected one source"),
        (["--offline", "a.json"], "needs --completion"),
        (["http://127.0.0.1:1", "REQUEST"], "Check the address"),
        (["http://127.0.0.1:1", "LIST"], "is not a JSON object"),
    ],
)
def test_bad_use(arguments: list[str], text: str, tmp_path: Path, tokenizer: Path, run: Run) -> None:
    files = {"REQUEST": request(tmp_path, BODY | {"model": "m"}), "LIST": str(tmp_path / "list.json")}
    (tmp_path / "list.json").write_text("[]")
    said = run("explain", *(files.get(each, each) for each in arguments), "--tokenizer", str(tokenizer))
    assert said.code == 2 and text in said.err


def test_the_tokenizer_is_needed(tmp_path: Path, run: Run) -> None:
    said = run("explain", "http://127.0.0.1:1", request(tmp_path))
    assert said.code == 2 and "--tokenizer" in said.err


def test_without_a_server(tmp_path: Path, tokenizer: Path, run: Run) -> None:
    completion, page = tmp_path / "answer.txt", tmp_path / "out.html"
    command = [
        "explain",
        "--offline",
        request(tmp_path),
        "--tokenizer",
        str(tokenizer),
        "--completion",
        str(completion),
    ]
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
