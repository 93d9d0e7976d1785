"""A LoRA adapter for a random model."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

RANK = 4


def write_adapter(directory: Path, model: Path) -> None:
    """Write a LoRA adapter with weights large enough to change what is written."""
    config = json.loads((model / "config.json").read_text())
    width = config["num_attention_heads"] * config["head_dim"]
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(RANK, width, generator=generator)
        weights[f"{name}.lora_B.weight"] = torch.randn(config["hidden_size"], RANK, generator=generator) * 5
    directory.mkdir()
    save_file(weights, directory / "adapter_model.safetensors")
    adapter = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["o_proj"], "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps(adapter))
