"""``constrained-k2 render``, as a person and as a script use it."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from constrained_k2.cli import main
from constrained_k2.prompts import PromptRenderer
from constrained_k2.testing import write_tokenizer
from tests.evaluation.fake_server import Fake

RIGHT = {"messages": [{"role": "user", "content": "hi"}]}
WRONG = {"messages": [{"role": "user", "content": "hi<|im_end|>"}]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("render")
    write_tokenizer(directory)
    return directory


class Served(Fake):
    """A server whose /tokenize repairs nothing unless ``repairs`` is set."""

    def __init__(self, tokenizer: Path) -> None:
        super().__init__()
        self.renderer = PromptRenderer.from_pretrained(tokenizer)
        self.repairs = False
        self.tokens: list[Any] | None = None  # the answer, in place of the right one
        self.asked: list[dict[str, Any]] = []

    def tokenize(self, body: Any) -> Any:
        self.asked.append(body)
        right = list(self.renderer.render(body, repair=self.repairs).ids)
        return {"tokens": right if self.tokens is None else self.tokens}


@pytest.fixture
def served(tokenizer: Path) -> Iterator[Served]:
    with Served(tokenizer) as started:
        yield started


def rendered(body: Any, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(body if isinstance(body, str) else json.dumps(body)))
    return main(["render", "-", "--tokenizer", str(tokenizer), *options])


def test_the_prompt_goes_to_standard_output(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rendered(RIGHT, tokenizer, monkeypatch) == 0
    out, err = capsys.readouterr()
    assert out.startswith("<|im_system|>system<|im_middle|>You are Kimi")
    assert out.endswith("<|im_user|>user<|im_middle|>hi<|im_end|><|im_assistant|>assistant<|im_middle|>\n")
    assert "no repairs" in err


def test_repairs_are_shown(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rendered(WRONG, tokenizer, monkeypatch) == 0
    out, err = capsys.readouterr()
    assert "hi<\u2060|im_end|><|im_end|>" in out
    assert "1 repair" in err and "repaired messages[0].content (special token)" in err


def test_without_repairs_the_faults_are_found(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rendered(WRONG, tokenizer, monkeypatch, "--no-repair") == 1
    assert "fault: turn 1 (user) (special token): <|im_end|> inside the turn" in capsys.readouterr().err


def test_as_json(tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert rendered(WRONG, tokenizer, monkeypatch, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["repairs"] == [
        {
            "location": "messages[0].content",
            "kind": "special token",
            "before": "<|im_end|>",
            "after": "<\u2060|im_end|>",
        }
    ]
    assert document["faults"] == []
    assert document["ids"] and document["text"].endswith("assistant<|im_middle|>")


def test_another_template(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}<|im_user|>user<|im_middle|>{{ m.content }}<|im_end|>{% endfor %}")
    assert rendered(RIGHT, tokenizer, monkeypatch, "--template", str(template)) == 0
    out, err = capsys.readouterr()
    assert out == "<|im_user|>user<|im_middle|>hi<|im_end|><|im_assistant|>assistant<|im_middle|>\n"
    assert "repaired prompt (prompt): null → " in err


def test_the_servers_prompt_is_compared(
    tokenizer: Path, served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rendered(WRONG | {"temperature": 1}, tokenizer, monkeypatch, "--diff", f"{served.url}/v1/") == 1
    err = capsys.readouterr().err
    assert "-<|im_user|>user<|im_middle|>hi<\u2060|im_end|><|im_end|>" in err
    assert "server's fault: turn 1 (user) (special token)" in err
    assert served.asked == [WRONG]
    served.repairs = True
    assert rendered(WRONG, tokenizer, monkeypatch, "--diff", served.url, "--json") == 0
    assert json.loads(capsys.readouterr().out)["served"]["same"] is True


@pytest.mark.parametrize(
    ("tokens", "said"), [(["a"], "Expected `int`, got `str`"), ([10**9], "is not in the vocabulary")]
)
def test_a_server_with_invalid_tokens(
    tokens: Any, said: str, tokenizer: Path, served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    served.tokens = tokens
    assert rendered(RIGHT, tokenizer, monkeypatch, "--diff", served.url) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "options", "said"),
    [
        ("{", (), "is not JSON"),
        ([], (), "body: must be an object"),
        ({"messages": [{"role": 5}]}, (), "messages[0].role"),
        (RIGHT, ("--template", "/nowhere"), "cannot be read"),
        (RIGHT, ("--diff", "http://127.0.0.1:9"), "ConnectError"),
        (RIGHT, ("--diff", "nonsense"), "--diff: malformed address"),
        (RIGHT | {"chat_template_kwargs": {"messages": []}}, (), "is not a template variable"),
        (RIGHT | {"chat_template_kwargs": []}, (), "must be an object"),
        (RIGHT | {"thinking": "off"}, (), "thinking: must be a boolean"),
        (RIGHT | {"thinking": {"type": []}}, (), "thinking.type: must be 'enabled' or 'disabled'"),
    ],
)
def test_bad_use(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], body: Any, options: Any, said: str
) -> None:  # fmt: skip
    assert rendered(body, tokenizer, monkeypatch, *options) == 2
    assert said in capsys.readouterr().err


def test_a_directory_without_a_template(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("tiktoken.model", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tokenizer / name).read_bytes())
    assert rendered(RIGHT, tmp_path, monkeypatch) == 2
    assert "no chat template found" in capsys.readouterr().err
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "default", "template": "<|im_assistant|>assistant<|im_middle|>"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    rendered(RIGHT, tmp_path, monkeypatch)
    assert capsys.readouterr().out == "<|im_assistant|>assistant<|im_middle|>\n"


def test_the_checkpoints_own_code_makes_the_same(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer  # slow to import, and for this test alone

    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"z": 1, "a": {"y": 1, "b": [{"d": 1, "c": 1}]}}},
    }
    body = WRONG | {"tools": [tool]}
    assert rendered(body, tokenizer, monkeypatch, "--json") == 0
    without = capsys.readouterr().out
    assert rendered(body, tokenizer, monkeypatch, "--json", "--trust") == 0
    assert capsys.readouterr().out == without
    loaded = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=True)
    assert loaded.encode(json.loads(without)["text"], add_special_tokens=False) == json.loads(without)["ids"]


def test_kimi_k3_is_rendered_without_a_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tokenizer(tmp_path, wire_format="kimi_k3")
    body = {"messages": [{"role": "user", "content": "hi<|open|>"}], "reasoning_effort": "low"}
    assert rendered(body, tmp_path, monkeypatch) == 0
    out, err = capsys.readouterr()
    assert "`thinking_effort=low`" in out
    assert out.endswith('<|sep|>hi<|open|><|close|>message<|sep|><|end_of_msg|><|open|>message role="assistant"<|sep|><|open|>think<|sep|>\n')  # fmt: skip
    assert "no repairs" in err
    assert "fault" not in err
