"""Builds a tiny random checkpoint in one of two shapes that vLLM serves on a CPU."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from safetensors.torch import save_file

from constrained_k2.formats import kimi_k2, kimi_k3
from constrained_k2.testing.tokenizer import WireFormatName, write_tokenizer

Architecture: TypeAlias = Literal["kimi_k2", "llama"]
Shapes: TypeAlias = dict[str, tuple[int, ...]]

_CONSTANT = 16.0  # every embedding's value in hidden dimension 0; the other dimensions are standard normal
_NOISE = 1.0  # standard deviation, over contexts, of a token's logit around the prior, in nats

_JSON_PRIOR: Mapping[str, float] = {
    **dict.fromkeys('"}]', 0.06),
    **dict.fromkeys(",:", 0.03),
    r'/(?=.*["}\],])[\[\]{}",:]+/': 0.02,  # JSON's punctuation in longer tokens: `",`, `"}`, `":"`
    r"/[0-9]+/": 0.06,
    r"/.*[\x00-\x08\x0b-\x1f\ufffd].*/": 0.02,  # control characters and parts of UTF-8 sequences
}

DEFAULT_PRIOR: Mapping[str, float] = {
    kimi_k2.SECTION_BEGIN: 0.04,
    kimi_k2.TURN_END: 0.02,
    **dict.fromkeys((kimi_k2.SECTION_END, kimi_k2.CALL_BEGIN, kimi_k2.ARGUMENT_BEGIN, kimi_k2.CALL_END), 0.01),
    f"/{kimi_k2.SPECIAL_SHAPE}/": 0.005,  # the other special tokens
    **_JSON_PRIOR,
}
"""With these shares free text opens a section or ends after about 5-40 tokens, a JSON string after about 5-30."""

KIMI_K3_PRIOR: Mapping[str, float] = {
    kimi_k3.CLOSE: 0.06,
    kimi_k3.OPEN: 0.03,
    **dict.fromkeys((kimi_k3.SEPARATOR, kimi_k3.MESSAGE_END), 0.01),
    f"/{kimi_k3.SPECIAL_SHAPE}/": 0.005,
    **_JSON_PRIOR,
}
"""With these shares a text or a string argument ends after about 5-40 tokens."""

_PRIORS: Mapping[WireFormatName, Mapping[str, float]] = {"kimi_k2": DEFAULT_PRIOR, "kimi_k3": KIMI_K3_PRIOR}
_TURN_ENDS: Mapping[WireFormatName, str] = {"kimi_k2": kimi_k2.TURN_END, "kimi_k3": kimi_k3.MESSAGE_END}


def build_model(
    out: Path,
    *,
    arch: Architecture,
    tokenizer: Path | None = None,  # directory of the real vocabulary; without it a small one is trained
    seed: int = 0,
    wire_format: WireFormatName = "kimi_k2",
) -> Path:
    """Write a model directory, and return it: config, bfloat16 weights, generation config, tokenizer, chat template.

    The weights are random, but the logits follow a unigram prior: `logit[token] ~ prior[token] + N(0, 1)`, where the
    second term depends on the context. Hidden dimension 0 carries the same large constant at every position, which the
    final RMSNorm leaves positive and nearly constant, and that column of `lm_head` holds the prior.

    `kimi_k2` is DeepSeek-V3's architecture (MLA and MoE) with the real head dimensions, which MLA kernels expect.
    `llama` has plain attention, for prompts of thousands of tokens: MLA prefill is slow on a CPU. Either shape speaks
    either wire format: Kimi K3's own architecture is not built, and servers of a Kimi K3 model need
    `--tokenizer-mode kimi_k3`. The same arguments give the same files.
    """
    out.mkdir(parents=True, exist_ok=True)
    texts = write_tokenizer(out, tokenizer, wire_format=wire_format)
    ids = {text: token_id for token_id, text in enumerate(texts)}
    config = json.loads((files("constrained_k2.testing") / f"{arch}.json").read_bytes())
    ends = {"bos_token_id": ids[kimi_k2.BOS], "eos_token_id": ids[_TURN_ENDS[wire_format]]}
    _write_json(out / "config.json", {**config, "vocab_size": len(texts), **ends, "pad_token_id": ids[kimi_k2.PAD]})
    _write_json(out / "generation_config.json", {**ends, "max_length": config["max_position_embeddings"]})
    logits = torch.tensor(unigram_logits(texts, _PRIORS[wire_format]))
    weights = _random_weights(_layers(config), config["hidden_size"], logits, torch.Generator().manual_seed(seed))
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return out


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")


def _layers(config: dict[str, Any]) -> Shapes:
    """Return name -> shape of every weight of the layers, `[out, in]` as PyTorch stores them."""
    shapes: Shapes = {}
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        shapes |= {f"{layer}.{name}_layernorm.weight": (config["hidden_size"],) for name in ("input", "post_attention")}
        if config["model_type"] == "kimi_k2":
            shapes |= _latent_attention(config, f"{layer}.self_attn")
            shapes |= _experts(config, f"{layer}.mlp", dense=index < config["first_k_dense_replace"])
        else:
            shapes |= _attention(config, f"{layer}.self_attn")
            shapes |= _mlp(f"{layer}.mlp", config["hidden_size"], config["intermediate_size"])
    return shapes


def _mlp(prefix: str, hidden: int, intermediate: int) -> Shapes:
    shapes: Shapes = {f"{prefix}.{name}_proj.weight": (intermediate, hidden) for name in ("gate", "up")}
    return {**shapes, f"{prefix}.down_proj.weight": (hidden, intermediate)}


def _attention(config: dict[str, Any], prefix: str) -> Shapes:
    hidden, width = config["hidden_size"], config["num_attention_heads"] * config["head_dim"]
    shapes: Shapes = {f"{prefix}.{name}_proj.weight": (width, hidden) for name in "qkv"}
    return {**shapes, f"{prefix}.o_proj.weight": (hidden, width)}


def _latent_attention(config: dict[str, Any], prefix: str) -> Shapes:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    q_rank, kv_rank = config["q_lora_rank"], config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    return {
        f"{prefix}.q_a_proj.weight": (q_rank, hidden),
        f"{prefix}.q_a_layernorm.weight": (q_rank,),
        f"{prefix}.q_b_proj.weight": (heads * (nope + rope), q_rank),
        f"{prefix}.kv_a_proj_with_mqa.weight": (kv_rank + rope, hidden),
        f"{prefix}.kv_a_layernorm.weight": (kv_rank,),
        f"{prefix}.kv_b_proj.weight": (heads * (nope + value), kv_rank),
        f"{prefix}.o_proj.weight": (hidden, heads * value),
    }


def _experts(config: dict[str, Any], prefix: str, *, dense: bool) -> Shapes:
    hidden, experts = config["hidden_size"], config["n_routed_experts"]
    if dense:
        return _mlp(prefix, hidden, config["intermediate_size"])
    shapes: Shapes = {f"{prefix}.gate.weight": (experts, hidden), f"{prefix}.gate.e_score_correction_bias": (experts,)}
    for name in (*(f"experts.{number}" for number in range(experts)), "shared_experts"):
        shapes |= _mlp(f"{prefix}.{name}", hidden, config["moe_intermediate_size"])
    return shapes


def _random_weights(
    layers: Shapes, hidden: int, prior: torch.Tensor, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Draw the weights of the layers and, for a float32 `prior` of `[vocab_size]` logits, those around them."""

    def normal(*shape: int, std: float) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * std

    # RMSNorm divides by the root of the mean square, which the constant dominates: its outputs are known beforehand.
    scale = math.sqrt((_CONSTANT**2 + hidden - 1) / hidden)
    embeddings = normal(len(prior), hidden, std=1.0)
    embeddings[:, 0] = _CONSTANT
    lm_head = normal(len(prior), hidden, std=_NOISE * scale / math.sqrt(hidden - 1))
    lm_head[:, 0] = prior * scale / _CONSTANT
    weights = {"model.embed_tokens.weight": embeddings, "model.norm.weight": torch.ones(hidden)}
    weights["lm_head.weight"] = lm_head
    for name, shape in layers.items():
        if name.endswith("norm.weight"):
            weights[name] = torch.ones(shape)
        elif name.endswith("e_score_correction_bias"):
            weights[name] = torch.zeros(shape)
        else:
            weights[name] = normal(*shape, std=0.02)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weights[name][0] = 0.0  # no layer writes to dimension 0
    return {name: weight.to(torch.bfloat16) for name, weight in weights.items()}


def unigram_logits(texts: Sequence[str], shares: Mapping[str, float]) -> list[float]:
    """Convert shares of the probability into a logit, in nats, for each of the tokens with these texts.

    A key is the text of one token, or a regular expression between slashes that fully matches the tokens it names; its
    share is spread evenly over them. A token belongs to the key that is its text, else to the first expression that
    matches. The rest of the probability is spread evenly over the other tokens; their logit is 0. Shares are
    probabilities so that they mean the same for 1,024 tokens and for 163,584.
    """
    rest = 1.0 - sum(shares.values())
    if rest <= 0 or min(shares.values(), default=1.0) <= 0:
        raise ValueError(f"shares must be above 0 and sum to less than 1: they leave {rest:.3f}")
    patterns = {key: re.compile(key[1:-1], re.DOTALL) for key in shares if key[:1] == key[-1:] == "/" and len(key) > 2}
    members: dict[str | None, list[int]] = {key: [] for key in (*shares, None)}
    for token_id, text in enumerate(texts):
        key = text if text in shares else next((key for key, fit in patterns.items() if fit.fullmatch(text)), None)
        members[key].append(token_id)
    if unused := [key for key in shares if not members[key]]:
        raise ValueError(f"no token of the vocabulary matches {unused}")
    if not members[None]:
        raise ValueError("the keys name every token: no token is left for the rest of the probability")
    logits = [0.0] * len(texts)
    for key, share in shares.items():
        raised = math.log(share / len(members[key])) - math.log(rest / len(members[None]))
        for token_id in members[key]:
            logits[token_id] = raised
    return logits
