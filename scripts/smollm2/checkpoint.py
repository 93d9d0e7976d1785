"""Writes the checkpoints that vLLM serves: the base model with the adapter, Kimi K2's tokens and template; the head."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from scripts.smollm2.adapter import load_adapter, merged
from scripts.smollm2.base import open_gguf, read_base
from scripts.smollm2.eagle import write_head
from scripts.smollm2.tokenizer import BOS, TURN_END, write_tokenizer

ADAPTER = Path(__file__).parent / "adapter.safetensors"
HEAD = ADAPTER.with_name("head.safetensors")


def write_checkpoint(out: Path, adapter: Path = ADAPTER) -> Path:
    """Write the checkpoint in bfloat16 (270 MB) into a directory, and return it.

    Raises ``SystemExit`` if the base model is missing and cannot be downloaded.
    """
    gguf = open_gguf()
    out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(out, gguf)
    base = read_base(gguf)
    ends = {"bos_token_id": BOS, "eos_token_id": TURN_END, "pad_token_id": TURN_END}
    _write(out / "config.json", base.config | ends)
    _write(out / "generation_config.json", ends)
    weights = {name: weight.to(torch.bfloat16) for name, weight in merged(base, load_adapter(adapter))}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return out


def write_shipped_head(model: Path) -> Path:
    """Write the EAGLE-3 head's checkpoint into a directory of the model's checkpoint, and return it."""
    return write_head(model / "eagle3", json.loads((model / "config.json").read_text()), load_adapter(HEAD))


def _write(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", "utf-8")
