"""Writes SmolLM2's tokenizer with Kimi K2's special tokens and chat template."""

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

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

BOS = next(token_id for token_id, text in NAMES.items() if text == kimi_k2.BOS)
TURN_END = 2
_SPECIAL = 3  # GGUF's type of control tokens


def write_tokenizer(out: Path, gguf: GGUFReader) -> None:
    """Write the tokenizer's files into a directory that exists.

    Digits are tokens of their own, as in the model's training (``smollm`` of llama.cpp's pre-tokenizers).
    """
    texts, types, merges = (
        gguf.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type", "merges")
    )
    texts = [NAMES.get(token_id, text) for token_id, text in enumerate(texts)]
    vocabulary = {text: token_id for token_id, text in enumerate(texts)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [tuple(merge.split(" ", 1)) for merge in merges]))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = [text for text, kind in zip(texts, types, strict=True) if kind == _SPECIAL]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": kimi_k2.BOS,
        "eos_token": kimi_k2.TURN_END,
        "pad_token": kimi_k2.TURN_END,
        "clean_up_tokenization_spaces": False,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    template = (files("constrained_k2.testing") / "chat_template.jinja").read_text("utf-8")
    (out / "chat_template.jinja").write_text(template, "utf-8")
