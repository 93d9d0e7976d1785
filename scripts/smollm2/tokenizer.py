"""Gives SmolLM2's tokenizer Kimi K2's special tokens and chat template."""

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from constrained_k2.formats import kimi_k2

NAMES: Mapping[int, str] = {
    3: kimi_k2.USER,
    4: kimi_k2.ASSISTANT,
    5: kimi_k2.SYSTEM,
    6: kimi_k2.MIDDLE,
    7: kimi_k2.SECTION_BEGIN,
    8: kimi_k2.SECTION_END,
    9: kimi_k2.CALL_BEGIN,
    10: kimi_k2.ARGUMENT_BEGIN,
    11: kimi_k2.CALL_END,
    12: kimi_k2.BOS,
    13: kimi_k2.EOS,
    14: kimi_k2.THINK_BEGIN,
    15: kimi_k2.THINK_END,
}
"""Special tokens of SmolLM2 that mark files and notebooks -> Kimi's text. Its ``<|im_end|>`` (2) keeps its text."""

TURN_END = 2


def write_tokenizer(out: Path, gguf: Path) -> None:
    """Write the tokenizer's files into a directory that exists."""
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(out)
    tokenizer = _read(out / "tokenizer.json")
    renamed = {}
    for token in tokenizer["added_tokens"]:
        if token["id"] in NAMES:
            renamed[token["content"]] = token["content"] = NAMES[token["id"]]
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    assert all(ids[text] == token_id for token_id, text in NAMES.items())
    vocabulary = tokenizer["model"]["vocab"]
    texts = {token_id: text for text, token_id in vocabulary.items()} | dict(NAMES)
    tokenizer["model"]["vocab"] = {text: token_id for token_id, text in sorted(texts.items())}
    _write(out / "tokenizer.json", tokenizer)
    config = _read(out / "tokenizer_config.json")
    for name in ("chat_template", "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"):
        config.pop(name, None)
    ends = {"bos_token": kimi_k2.BOS, "eos_token": kimi_k2.TURN_END, "pad_token": kimi_k2.TURN_END}
    _write(out / "tokenizer_config.json", config | ends)
    template = (files("constrained_k2.testing") / "chat_template.jinja").read_text("utf-8")
    (out / "chat_template.jinja").write_text(template, "utf-8")


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf-8")
