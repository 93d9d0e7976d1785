"""Weights for a model of :func:`constrained_k2.testing.build_model`: a LoRA adapter, and two EAGLE-3 heads.

One head drafts what it says, one is random.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from scripts.smollm2.eagle import Head, write_head

RANK = 4
_SHARPNESS = 4.0  # of the attention: each position attends to itself alone


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


def write_random(out: Path, model: Path) -> Path:
    """Write a head whose drafts are hardly ever the model's next token."""
    config = json.loads((model / "config.json").read_text())
    return write_head(out, config, Head(config).trained())


def write_copying(out: Path, model: Path) -> Path:
    """Write a head whose last hidden state is the embedding of the token before, nearly all that the model's is.

    Queries and keys are the embeddings' constant in hidden dimension 0, so that rotary positions alone tell them apart.
    """
    config = json.loads((model / "config.json").read_text())
    head, hidden = Head(config), config["hidden_size"]
    attention = head.midlayer.self_attn
    with torch.no_grad():
        for name, weight in head.named_parameters():
            if "norm" not in name:
                weight.zero_()
        for projection in (attention.q_proj, attention.k_proj):
            rows = projection.weight.view(config["num_attention_heads"], config["head_dim"], -1)
            rows[:, : config["head_dim"] // 2, 0] = _SHARPNESS
        attention.v_proj.weight[:hidden, :hidden] = torch.eye(hidden)
        attention.o_proj.weight[:, :hidden] = torch.eye(hidden)
    return write_head(out, config, head.trained())
