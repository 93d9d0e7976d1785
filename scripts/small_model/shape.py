"""The small model's dimensions, in training and served."""

import math
from dataclasses import dataclass
from typing import Any

SERVED_LATENT = 512
SERVED_ROTARY = 64
"""Kimi K2's sizes, the only ones that vLLM's MLA kernel for CPUs is compiled for (`mla_decode_kvcache`)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions in training; written models have `kv_rank` and `rotary` padded with zeros to the served sizes."""

    vocabulary: int  # logits
    hidden: int = 128  # residual stream
    layers: int = 3  # the first has a dense MLP, the others experts
    heads: int = 4
    q_rank: int = 128  # latent of the query
    kv_rank: int = 128  # latent of keys and values
    plain: int = 64  # a head's query and key without position
    rotary: int = 32  # their part with position
    value: int = 32  # a head's value
    dense: int = 256  # the first layer's MLP
    expert: int = 64  # one expert; the shared expert has the same width
    experts: int = 4  # routed ones
    active: int = 2  # routed experts per token
    routed_scale: float = 2.0  # factor on their sum
    theta: float = 10_000.0  # base of the rotary frequencies
    epsilon: float = 1e-6  # of the norms

    @property
    def attention_scale(self) -> float:
        """Factor on the scores, for the served head with its zeros."""
        return 1.0 / math.sqrt(self.plain + SERVED_ROTARY)

    def config(self) -> dict[str, Any]:
        """The fields of ``config.json``."""
        return {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "kimi_k2",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "q_lora_rank": self.q_rank,
            "kv_lora_rank": SERVED_LATENT,
            "qk_nope_head_dim": self.plain,
            "qk_rope_head_dim": SERVED_ROTARY,
            "v_head_dim": self.value,
            "intermediate_size": self.dense,
            "moe_intermediate_size": self.expert,
            "n_routed_experts": self.experts,
            "n_shared_experts": 1,
            "num_experts_per_tok": self.active,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "norm_topk_prob": True,
            "routed_scaling_factor": self.routed_scale,
            "num_nextn_predict_layers": 0,
            "hidden_act": "silu",
            "rms_norm_eps": self.epsilon,
            "rope_theta": self.theta,
            "max_position_embeddings": 8192,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }
