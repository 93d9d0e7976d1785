"""Writes the trained small model as a model directory for vLLM."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from constrained_k2.formats.kimi_k2 import BOS, PAD
from constrained_k2.vocabulary.vocabulary import Vocabulary
from scripts.small_model.network import SERVED_LATENT, SERVED_ROTARY, Shape


def write_model(out: Path, weights: Mapping[str, Tensor], vocabulary: Vocabulary) -> None:
    """Write a trained network (parameters of :class:`scripts.small_model.network.Network`) beside its tokenizer."""
    shape, ids = Shape(vocabulary.size), vocabulary.special_tokens
    ends = {"bos_token_id": ids[BOS], "eos_token_id": vocabulary.format.turn_end}
    _write_json(out / "config.json", shape.config() | ends | {"pad_token_id": ids[PAD]})
    _write_json(out / "generation_config.json", ends)
    served = {name: weight.to(torch.bfloat16).contiguous() for name, weight in served_weights(weights, shape).items()}
    save_file(served, out / "model.safetensors", metadata={"format": "pt"})


def served_weights(weights: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """The weights under a DeepSeek-V3 checkpoint's names, padded with zeros to the served sizes."""
    served = {
        "model.embed_tokens.weight": weights["embedding"],
        "lm_head.weight": (weights["embedding"].float() @ weights["turn"].float()),
        "model.norm.weight": weights["norm"],
    }
    for number in range(shape.layers):
        ours, theirs = f"layers.{number}", f"model.layers.{number}"
        layer = {name.removeprefix(f"{ours}."): weight for name, weight in weights.items() if name.startswith(ours)}
        served[f"{theirs}.input_layernorm.weight"] = layer["attention_norm"]
        served[f"{theirs}.post_attention_layernorm.weight"] = layer["mlp_norm"]
        served |= {f"{theirs}.self_attn.{name}.weight": weight for name, weight in _attention(layer, shape).items()}
        served |= {f"{theirs}.mlp.{name}": weight for name, weight in _mlp(layer, shape).items()}
    return served


def _attention(layer: Mapping[str, Tensor], s: Shape) -> dict[str, Tensor]:
    """The attention's matrices; every second served frequency is a trained one, the others rotate zeros."""
    pairs = torch.arange(s.rotary // 2) * (SERVED_ROTARY // s.rotary)
    places = torch.stack([2 * pairs, 2 * pairs + 1], -1).flatten()
    queries = layer["attention.q_b"].view(s.heads, s.plain + s.rotary, s.q_rank)
    q_b = queries.new_zeros(s.heads, s.plain + SERVED_ROTARY, s.q_rank)
    q_b[:, : s.plain] = queries[:, : s.plain]
    q_b[:, s.plain + places] = queries[:, s.plain :]
    kv_a = queries.new_zeros(SERVED_LATENT + SERVED_ROTARY, s.hidden)
    kv_a[: s.kv_rank] = layer["attention.kv_a"]
    kv_a[SERVED_LATENT + places] = layer["attention.k_rotary"]
    kv_b = queries.new_zeros(s.heads * (s.plain + s.value), SERVED_LATENT)
    kv_b[:, : s.kv_rank] = layer["attention.kv_b"]
    kv_norm = queries.new_ones(SERVED_LATENT)
    kv_norm[: s.kv_rank] = layer["attention.kv_norm"]
    return {
        "q_a_proj": layer["attention.q_a"],
        "q_a_layernorm": layer["attention.q_norm"],
        "q_b_proj": q_b.flatten(0, 1),
        "kv_a_proj_with_mqa": kv_a,
        "kv_a_layernorm": kv_norm,
        "kv_b_proj": kv_b,
        "o_proj": layer["attention.o"],
    }


def _mlp(layer: Mapping[str, Tensor], s: Shape) -> dict[str, Tensor]:
    """The matrices of the dense MLP, or of each expert."""
    gate, up, down = (layer[f"mlp.{name}"] for name in ("gate", "up", "down"))
    if "mlp.router" not in layer:
        return {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": down}
    found = {"gate.weight": layer["mlp.router"], "gate.e_score_correction_bias": gate.new_zeros(s.experts)}
    for number in range(s.experts + 1):
        expert = "shared_experts" if number == s.experts else f"experts.{number}"
        rows = slice(number * s.expert, (number + 1) * s.expert)
        found |= {f"{expert}.gate_proj.weight": gate[rows], f"{expert}.up_proj.weight": up[rows]}
        found[f"{expert}.down_proj.weight"] = down[:, rows]
    return found


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
