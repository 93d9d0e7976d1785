"""The stand-in's dimensions, as it is trained and as it is served."""

import math
from dataclasses import dataclass
from typing import Any

SERVED_LATENT = 512
SERVED_ROTARY = 64
"""What Kimi K2 has, and the only sizes that vLLM's MLA kernel for CPUs is compiled for (`mla_decode_kvcache`)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions as trained. `kv_rank` and `rotary` are filled up with zeros to the served ones when written.

    Attributes:
        vocabulary: Logits.
        hidden: Width of the residual stream.
        layers: How many; the first has a dense MLP, the others experts.
        heads: Of attention.
        q_rank: Width of the query's latent.
        kv_rank: Width of the latent of keys and values.
        plain: Width of a head's query and key without position.
        rotary: Width of their part with position.
        value: Width of a head's value.
        dense: Width of the first layer's MLP.
        expert: Width of one expert; the shared expert has the same.
        experts: Routed experts.
        active: Of these, how many a token takes.
        routed_scale: Factor on the routed experts' sum.
        theta: Base of the rotary frequencies.
        epsilon: Of the norms.
    """

    vocabulary: int
    hidden: int = 128
    layers: int = 3
    heads: int = 4
    q_rank: int = 128
    kv_rank: int = 128
    plain: int = 64
    rotary: int = 32
    value: int = 32
    dense: int = 256
    expert: int = 64
    experts: int = 4
    active: int = 2
    routed_scale: float = 2.0
    theta: float = 10_000.0
    epsilon: float = 1e-6

    @property
    def attention_scale(self) -> float:
        """Factor on the scores: the served head's, zeros included."""
        return 1.0 / math.sqrt(self.plain + SERVED_ROTARY)

    def config(self) -> dict[str, Any]:
        """What ``config.json`` says of the shape, under Kimi K2's ``model_type``."""
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
