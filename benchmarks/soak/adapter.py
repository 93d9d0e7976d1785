"""A random LoRA adapter of the random dense model."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.soak.load import ADAPTER

_RANK = 8
_STD = 0.1  # of the weights: the adapter's answers differ from the model's


def write_adapter(out: Path, model: Path) -> Path:
    """Write an adapter for the query and value projections of a Llama-shaped model; return its directory."""
    config = json.loads((model / "config.json").read_bytes())
    width = config["num_attention_heads"] * config["head_dim"]
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name in ("q_proj", "v_proj"):
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(_RANK, config["hidden_size"], generator=generator) * _STD
            weights[f"{prefix}.lora_B.weight"] = torch.randn(width, _RANK, generator=generator) * _STD
    out.mkdir(parents=True)
    save_file(weights, out / "adapter_model.safetensors")
    form = {"peft_type": "LORA", "r": _RANK, "lora_alpha": 2 * _RANK, "target_modules": ["q_proj", "v_proj"]}
    (out / "adapter_config.json").write_text(json.dumps(form | {"bias": "none", "task_type": "CAUSAL_LM"}))
    return out


def lora_flags(adapter: Path) -> list[str]:
    """Return the flags of a server with the adapter."""
    return ["--enable-lora", f"--max-lora-rank={_RANK}", "--lora-modules", f"{ADAPTER}={adapter}"]
