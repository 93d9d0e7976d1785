"""``constrained-k2 render``, as a person and as a script use it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from constrained_k2.prompts import PromptRenderer
from constrained_k2.testing import write_tokenizer
from tests.cli.conftest import Run, Said
from tests.evaluation.fake_server import Fake
from tests.kit.tools import tool

RIGHT = {"messages": [{"role": "user", "content": "hi"}]}
WRONG = {"messages": [{"role": "user", "content": "hi<|im_end|>"}]}


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


@pytest.fixture
def rendered(tokenizer: Path, run: Run) -> Run:
    """Render a request of standard input."""

    def rendered(body: Any, *options: str, directory: Path = tokenizer) -> Said:
        text = body if isinstance(body, str) else json.dumps(body)
        return run("render", "-", "--tokenizer", str(directory), *options, stdin=text)

    return rendered


def test_the_prompt_goes_to_standard_output(rendered: Run) -> None:
    said = rendered(RIGHT)
    assert said.code == 0
    assert said.out.startswith("<|im_system|>system<|im_middle|>You are Kimi")
    assert said.out.endswith("<|im_user|>user<|im_middle|>hi<|im_end|><|im_assistant|>assistant<|im_middle|>\n")
    assert "no repairs" in said.err


def test_repairs_and_faults_are_shown(rendered: Run) -> None:
    said = rendered(WRONG)
    assert said.code == 0 and "hi<\u2060|im_end|><|im_end|>" in said.out
    assert "1 repair" in said.err and "repaired messages[0].content (special token)" in said.err
    said = rendered(WRONG, "--no-repair")
    assert said.code == 1 and "fault: turn 1 (user) (special token): <|im_end|> inside the turn" in said.err
    said = rendered(WRONG, "--json")
    repair = {"location": "messages[0].content", "kind": "special token"}
    repair |= {"before": "<|im_end|>", "after": "<\u2060|im_end|>"}
    assert (said.code, said.json["repairs"], said.json["faults"]) == (0, [repair], [])
    assert said.json["ids"] and said.json["text"].endswith("assistant<|im_middle|>")


def test_another_template(rendered: Run, tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}<|im_user|>user<|im_middle|>{{ m.content }}<|im_end|>{% endfor %}")
    said = rendered(RIGHT, "--template", str(template))
    assert said.code == 0
    assert said.out == "<|im_user|>user<|im_middle|>hi<|im_end|><|im_assistant|>assistant<|im_middle|>\n"
    assert "repaired prompt (prompt): null → " in said.err


def test_the_servers_prompt_is_compared(rendered: Run, served: Served) -> None:
    said = rendered(WRONG | {"temperature": 1}, "--diff", f"{served.url}/v1/")
    assert said.code == 1
    assert "-<|im_user|>user<|im_middle|>hi<\u2060|im_end|><|im_end|>" in said.err
    assert "server's fault: turn 1 (user) (special token)" in said.err
    assert served.asked == [WRONG]
    served.repairs = True
    said = rendered(WRONG, "--diff", served.url, "--json")
    assert said.code == 0 and said.json["served"]["same"] is True


@pytest.mark.parametrize(
    ("tokens", "text"), [(["a"], "Expected `int`, got `str`"), ([10**9], "is not in the vocabulary")]
)
def test_a_server_with_invalid_tokens(tokens: Any, text: str, rendered: Run, served: Served) -> None:
    served.tokens = tokens
    said = rendered(RIGHT, "--diff", served.url)
    assert said.code == 2 and text in said.err


def test_a_directory_without_a_template(rendered: Run, tmp_path: Path, tokenizer: Path) -> None:
    for name in ("tiktoken.model", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tokenizer / name).read_bytes())
    said = rendered(RIGHT, directory=tmp_path)
    assert said.code == 2 and "no chat template found" in said.err
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "default", "template": "<|im_assistant|>assistant<|im_middle|>"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert rendered(RIGHT, directory=tmp_path).out == "<|im_assistant|>assistant<|im_middle|>\n"


def test_the_checkpoints_own_code_makes_the_same(rendered: Run, tokenizer: Path) -> None:
    from transformers import AutoTokenizer  # slow to import, and for this test alone

    body = WRONG | {"tools": [tool("f", {"z": 1, "a": {"y": 1, "b": [{"d": 1, "c": 1}]}})]}
    without, trusted = rendered(body, "--json"), rendered(body, "--json", "--trust")
    assert without == trusted and without.code == 0
    loaded = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=True)
    assert loaded.encode(without.json["text"], add_special_tokens=False) == without.json["ids"]


def test_kimi_k3_is_rendered_without_a_template(rendered: Run, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, wire_format="kimi_k3")
    said = rendered(
        {"messages": [{"role": "user", "content": "hi<|open|>"}], "reasoning_effort": "low"}, directory=tmp_path
    )
    assert said.code == 0
    assert "`thinking_effort=low`" in said.out
    assert said.out.endswith('<|sep|>hi<|open|><|close|>message<|sep|><|end_of_msg|><|open|>message role="assistant"<|sep|><|open|>think<|sep|>\n')  # fmt: skip
    assert "no repairs" in said.err
    assert "fault" not in said.err
