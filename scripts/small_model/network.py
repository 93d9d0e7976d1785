"""The small model's dimensions, and its network for training: DeepSeek-V3's layers (MLA, routed experts) in torch."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

SERVED_LATENT = 512
SERVED_ROTARY = 64
"""Kimi K2's sizes, the only ones that vLLM's MLA kernel for CPUs is compiled for (`mla_decode_kvcache`)."""

_QUERY_CHUNK = 160


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


def rms_norm(hidden: Tensor, weight: Tensor, epsilon: float, served_width: int = 0) -> Tensor:
    """Root-mean-square norm of ``[..., width]``; the mean is over ``served_width``, which includes the served zeros."""
    wide = hidden.float()
    mean = wide.square().sum(-1, keepdim=True) / (served_width or wide.shape[-1])
    return (wide * torch.rsqrt(mean + epsilon) * weight).to(hidden.dtype)


class Attention(nn.Module):  # type: ignore[misc]
    """Multi-head latent attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = s = shape
        self.q_a = _matrix(s.q_rank, s.hidden)
        self.q_norm = nn.Parameter(torch.ones(s.q_rank))
        self.q_b = _matrix(s.heads * (s.plain + s.rotary), s.q_rank)
        self.kv_a = _matrix(s.kv_rank, s.hidden)
        self.k_rotary = _matrix(s.rotary, s.hidden)
        # The zeros of the served width make the root mean square smaller; this weight compensates.
        self.kv_norm = nn.Parameter(torch.full((s.kv_rank,), math.sqrt(s.kv_rank / SERVED_LATENT)))
        self.kv_b = _matrix(s.heads * (s.plain + s.value), s.kv_rank)
        self.o = _matrix(s.hidden, s.heads * s.value)

    def forward(self, hidden: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Apply causal attention to ``[batch, length, hidden]``, normalized; angles are ``[length, rotary / 2]``."""
        s = self.shape
        batch, length, _ = hidden.shape
        latent = rms_norm(hidden @ self.q_a.T, self.q_norm, s.epsilon)
        queries = (latent @ self.q_b.T).view(batch, length, s.heads, s.plain + s.rotary).transpose(1, 2)
        latent = rms_norm(hidden @ self.kv_a.T, self.kv_norm, s.epsilon, SERVED_LATENT)
        both = (latent @ self.kv_b.T).view(batch, length, s.heads, s.plain + s.value).transpose(1, 2)
        plain, values = both.split([s.plain, s.value], -1)
        turned = _rotate((hidden @ self.k_rotary.T).unsqueeze(1), cosine, sine).expand(-1, s.heads, -1, -1)
        keys = torch.cat([plain, turned], -1).transpose(-1, -2)
        queries = torch.cat([queries[..., : s.plain], _rotate(queries[..., s.plain :], cosine, sine)], -1)
        queries = queries * s.attention_scale
        outputs = []
        for start in range(0, length, _QUERY_CHUNK):
            end = min(start + _QUERY_CHUNK, length)
            later = torch.ones(end - start, end, dtype=torch.bool).triu(start + 1)
            scores = (queries[:, :, start:end] @ keys[..., :end]).masked_fill(later, -1e4)
            outputs.append(scores.softmax(-1).to(values.dtype) @ values[:, :, :end])
        return torch.cat(outputs, 2).transpose(1, 2).reshape(batch, length, -1) @ self.o.T


class GatedMlp(nn.Module):  # type: ignore[misc]
    """The dense MLP, or all experts side by side: inactive experts are multiplied by zero."""

    def __init__(self, shape: Shape, *, routed: bool) -> None:
        super().__init__()
        self.shape = s = shape
        width = s.expert * (s.experts + 1) if routed else s.dense  # the last block is the shared expert
        self.gate = _matrix(width, s.hidden)
        self.up = _matrix(width, s.hidden)
        self.down = _matrix(s.hidden, width)
        self.router = _matrix(s.experts, s.hidden) if routed else None

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """Apply the layer; also the load balance of the experts: 1 at best, ``experts`` at worst."""
        inner = functional.silu(hidden @ self.gate.T) * (hidden @ self.up.T)
        if self.router is None:
            return inner @ self.down.T, None
        s = self.shape
        scores = (hidden.float() @ self.router.T).float().sigmoid()
        taken = torch.zeros_like(scores).scatter_(-1, scores.topk(s.active, -1).indices, 1.0)
        weights = scores * taken
        weights = weights / weights.sum(-1, keepdim=True) * s.routed_scale
        shared = torch.ones_like(weights[..., :1])
        blocks = inner.unflatten(-1, (s.experts + 1, s.expert)) * torch.cat([weights, shared], -1).unsqueeze(-1).to(
            inner.dtype
        )
        share = taken.mean((0, 1)) / s.active * s.experts
        balance = (share * (scores / scores.sum(-1, keepdim=True)).mean((0, 1))).sum()
        return blocks.flatten(-2) @ self.down.T, balance


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and MLP, each after a norm and added to the residual stream."""

    def __init__(self, shape: Shape, *, routed: bool) -> None:
        super().__init__()
        self.epsilon = shape.epsilon
        self.attention_norm = nn.Parameter(torch.ones(shape.hidden))
        self.attention = Attention(shape)
        self.mlp_norm = nn.Parameter(torch.ones(shape.hidden))
        self.mlp = GatedMlp(shape, routed=routed)

    def forward(self, stream: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor | None]:
        """Apply the layer to ``[batch, length, hidden]``."""
        stream = stream + self.attention(rms_norm(stream, self.attention_norm, self.epsilon), cosine, sine)
        change, balance = self.mlp(rms_norm(stream, self.mlp_norm, self.epsilon))
        return stream + change, balance


class Network(nn.Module):  # type: ignore[misc]
    """The whole model. The head is a rotated embedding; with a plain one every token would predict itself."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.randn(shape.vocabulary, shape.hidden))
        self.layers = nn.ModuleList(Layer(shape, routed=number > 0) for number in range(shape.layers))
        self.turn = _matrix(shape.hidden, shape.hidden)
        self.norm = nn.Parameter(torch.full((shape.hidden,), shape.hidden**-0.5))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The normalized stream ``[batch, length, hidden]`` of int64 ids, and the mean of the layers' balance."""
        half = self.shape.rotary // 2
        frequencies = self.shape.theta ** (-torch.arange(half) / half)
        angles = torch.arange(ids.shape[1])[:, None] * frequencies
        stream, balances = self.embedding[ids], []
        for layer in self.layers:
            stream, balance = layer(stream, angles.cos(), angles.sin())
            if balance is not None:
                balances.append(balance)
        return rms_norm(stream, self.norm, self.shape.epsilon), torch.stack(balances).mean()

    def logits(self, states: Tensor) -> Tensor:
        """Return ``[..., vocabulary]`` for ``[..., hidden]``."""
        return states @ self.turn.T @ self.embedding.T


def _matrix(rows: int, columns: int) -> nn.Parameter:
    """Draw a weight ``[out, in]`` that preserves the scale of its input."""
    return nn.Parameter(torch.randn(rows, columns) * columns**-0.5)


def _rotate(pairs: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate neighbouring dimensions of ``[..., length, rotary]`` as DeepSeek-V3 does: (0, 1), (2, 3) and so on."""
    cosine, sine = cosine.to(pairs.dtype), sine.to(pairs.dtype)
    even, odd = pairs[..., 0::2], pairs[..., 1::2]
    return torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], -1).flatten(-2)
