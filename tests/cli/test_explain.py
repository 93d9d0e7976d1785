"""``constrained-k2 explain``: against a server, and without one."""

import json
from pathlib import Path
from typing import Any

import pytest

from constrained_k2.cli import main
from constrained_k2.cli.explain import with_overrides
from constrained_k2.testing import write_tokenizer
from tests.evaluation.fake_server import Fake
from tests.explain.test_places import CALL, UNITS, obj
from tests.explain.test_view import choice, override
from tests.explain.turns import tool

BODY = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool(obj(["u"], u=UNITS))]}


class Overriding(Fake):
    """Answers with one overridden token."""

    body: dict[str, Any]

    def __init__(self, answered: Any = None) -> None:
        super().__init__()
        self.answered = {"choices": [choice(override())]} if answered is None else answered

    def chat(self, body: Any) -> Any:
        self.body = body
        return self.answered


def request(tmp_path: Path, body: Any = BODY) -> str:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(body))
    return str(path)


def test_a_server_is_asked_and_its_answer_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "out.html"
    with Overriding() as server:
        assert main(["explain", server.url, request(tmp_path), "--html", str(page)]) == 0
    assert server.body["vllm_xargs"] == {"constrained_k2_diagnostics": "overrides"}
    assert server.body["tools"] == BODY["tools"]
    assert server.body["model"]
    assert "[CEL→cel]" in capsys.readouterr().out
    assert "<del>CEL</del>" in page.read_text()


@pytest.mark.parametrize("answered", [{}, [], {"choices": []}, {"choices": [{"message": {}}]}, "x"])
def test_a_server_without_overrides(answered: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Overriding(answered) as server:
        assert main(["explain", server.url, request(tmp_path)]) == 2
    assert "the answer holds no overrides" in capsys.readouterr().err


def test_a_clients_own_fields_stay() -> None:
    body = with_overrides({"vllm_xargs": {"other": 1}, "logprobs": False, "stream": True, "stream_options": {}, "n": 3})
    assert body == {
        "vllm_xargs": {"other": 1, "constrained_k2_diagnostics": "overrides"}, "logprobs": False, "stream": False, "n": 1
    }  # fmt: skip
    assert with_overrides({})["top_logprobs"] == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["explain"], "expected two sources"),
        (["explain", "http://localhost:1"], "expected two sources"),
        (["explain", "--offline", "a.json", "b.json"], "expected one source"),
        (["explain", "--offline", "a.json"], "needs --completion and --tokenizer"),
        (["explain", "http://127.0.0.1:1", "REQUEST"], "Check the address"),
        (["explain", "http://127.0.0.1:1", "LIST"], "is not a JSON object"),
    ],
)
def test_bad_use(arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"REQUEST": request(tmp_path, BODY | {"model": "m"}), "LIST": str(tmp_path / "list.json")}
    (tmp_path / "list.json").write_text("[]")
    assert main([files.get(each, each) for each in arguments]) == 2
    assert said in capsys.readouterr().err


def test_without_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer, completion, page = tmp_path / "tokenizer", tmp_path / "answer.txt", tmp_path / "out.html"
    tokenizer.mkdir()
    write_tokenizer(tokenizer)
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
    assert main([*command, "--html", str(page)]) == 1
    said = capsys.readouterr().out
    assert "/u" in said
    assert "enum" in said
    assert "refused" in said
    assert "<del>" in page.read_text()
    completion.write_text(f'{CALL}{{"u":"celsius"}}')
    assert main(command) == 0
    assert "No token was overridden or contested." in capsys.readouterr().out
    for text in ("[1, 2", "[-1]", "7", "[1.5]"):
        completion.write_text(text)
        assert main([*command, "--ids"]) == 2
    completion.write_text("[1, 2]")
    assert main([*command, "--ids"]) == 0
