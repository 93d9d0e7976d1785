"""An EAGLE-3 head for the model: one layer that drafts the next tokens from three of the model's hidden states.

It is vLLM's ``LlamaForCausalLMEagle3``, with the model's own embedding and head. In training each draft token but the
first starts from the head's own output, as it does in a server.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRotaryEmbedding, apply_rotary_pos_emb

INNER = 768
"""Width of its MLP."""

TOKENS = 3
"""Draft tokens a step, in training and in the server."""


def hidden_layers(layers: int) -> list[int]:
    """Return the numbers of layers after which a hidden state is taken, in order; 0 is before the first layer.

    For a model of at least six layers they are vLLM's default (``get_eagle3_default_aux_hidden_state_layers``).
    """
    return sorted((2, layers // 2, max(0, layers - 3)))


class _Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, self.width, self.heads = config.hidden_size, config.head_dim, config.num_attention_heads
        self.kv_heads, self.rotary = config.num_key_value_heads, LlamaRotaryEmbedding(config)
        self.q_proj = nn.Linear(2 * hidden, self.heads * self.width, bias=False)
        self.k_proj = nn.Linear(2 * hidden, self.kv_heads * self.width, bias=False)
        self.v_proj = nn.Linear(2 * hidden, self.kv_heads * self.width, bias=False)
        self.o_proj = nn.Linear(self.heads * self.width, hidden, bias=False)

    def forward(self, inputs: Tensor, earlier: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Attend over this draft token and those before it; ``earlier`` are their keys and values, and gets this one's.

        The first draft token of a position attends to all earlier positions' first ones. The n-th one, at position i,
        attends to the first ones up to i - n, and to one of each draft token between.
        """
        length = len(inputs)
        queries = self.q_proj(inputs).view(length, self.heads, self.width)
        keys = self.k_proj(inputs).view(length, self.kv_heads, self.width)
        cosine, sine = self.rotary(inputs, torch.arange(length)[None])
        queries, keys = apply_rotary_pos_emb(queries, keys, cosine[0], sine[0])
        values = self.v_proj(inputs).view(length, self.kv_heads, self.width)
        groups = self.heads // self.kv_heads
        earlier.append((keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)))
        (first, read), *between = earlier
        scores = torch.einsum("ihd,jhd->hij", queries, first)
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1 - len(between))
        parts = [scores.masked_fill(hidden, -math.inf)]
        shifted = []
        for number, (key, value) in enumerate(between, 1):
            back = len(between) - number
            parts.append(torch.einsum("ihd,ihd->hi", queries, key.roll(back, 0))[..., None])
            shifted.append(value.roll(back, 0))
        weights = (torch.cat(parts, -1) / math.sqrt(self.width)).softmax(-1)
        found = torch.einsum("hij,jhd->ihd", weights[..., :length], read)
        for number, value in enumerate(shifted):
            found = found + weights[..., length + number].T[..., None] * value
        return self.o_proj(found.reshape(length, -1))


class _Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = _Attention(config)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = nn.RMSNorm(hidden, eps)
        self.hidden_norm = nn.RMSNorm(hidden, eps)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps)

    def forward(self, embedded: Tensor, features: Tensor, earlier: list[tuple[Tensor, Tensor]]) -> Tensor:
        inputs = torch.cat((self.input_layernorm(embedded), self.hidden_norm(features)), -1)
        found = features + self.self_attn(inputs, earlier)
        out: Tensor = found + self.mlp(self.post_attention_layernorm(found))
        return out


class Head(nn.Module):  # type: ignore[misc]
    """The head; its parameters have the names that vLLM reads."""

    def __init__(self, config: dict[str, Any], seed: int = 0) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        torch.manual_seed(seed)
        self.fc = nn.Linear(3 * hidden, hidden, bias=False)
        self.midlayer = _Layer(LlamaConfig(**config | {"intermediate_size": INNER}))
        self.norm = nn.RMSNorm(hidden, config["rms_norm_eps"])

    def trained(self) -> dict[str, nn.Parameter]:
        """Return all parameters."""
        return dict(self.named_parameters())

    def drafts(self, model: LlamaForCausalLM, ids: Tensor, states: Tensor) -> list[Tensor]:
        """Return the last hidden states of each draft token, ``[length - 1, hidden]``: row i is of ``ids[i + 2]``.

        Args:
            model: Has the embedding.
            ids: int64 ``[length]``.
            states: The three hidden states of each token, ``[length, 3 * hidden]``.
        """
        embedded, features = model.model.embed_tokens(ids[1:]), self.fc(states[:-1])
        earlier: list[tuple[Tensor, Tensor]] = []
        found = []
        for _ in range(TOKENS):
            out = self.midlayer(embedded, features, earlier)
            found.append(self.norm(out))
            features = out.roll(1, 0)
        return found


def states_of(model: LlamaForCausalLM, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the three hidden states of ``[length]`` ids, side by side, and the model's last hidden states."""
    with torch.no_grad():
        out = model.model(ids[None], use_cache=False, output_hidden_states=True)
        chosen = hidden_layers(len(out.hidden_states) - 1)
        return torch.cat([out.hidden_states[number][0] for number in chosen], -1), out.last_hidden_state[0]


def loss_of(model: LlamaForCausalLM, head: Head, ids: Sequence[int], written: Sequence[bool]) -> Tensor:
    """Return the drafts' loss over the tokens that the assistant writes, in nats.

    It is the cross-entropy to the model's own distribution, summed over tokens and averaged over the draft tokens.
    """
    tokens, flags = torch.tensor(ids), torch.tensor(written[2:])
    states, last = states_of(model, tokens)
    with torch.no_grad():
        wanted = model.lm_head(last[1:-1][flags]).softmax(-1)
    total = torch.zeros(())
    known = torch.arange(len(flags))[flags]
    for number, hidden in enumerate(head.drafts(model, tokens, states)):
        drafted = model.lm_head(hidden[:-1][flags]).log_softmax(-1)
        total = total - (wanted * drafted).sum(-1)[known >= number].sum()  # before, the draft has no start
    return total / TOKENS


def write_head(out: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    """Write the head's checkpoint, beside the model's ``config``; return its directory."""
    out.mkdir(parents=True, exist_ok=True)
    kept = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "rope_theta")
    fields = {
        name: config[name] for name in (*kept, "max_position_embeddings", "rms_norm_eps", "hidden_act", "torch_dtype")
    }
    fields |= {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1}
    fields |= {"eagle_aux_hidden_state_layer_ids": hidden_layers(config["num_hidden_layers"])}
    fields |= {"intermediate_size": INNER, "draft_vocab_size": config["vocab_size"], "tie_word_embeddings": False}
    (out / "config.json").write_text(json.dumps(fields, indent=1) + "\n", "utf-8")
    stored = {name: weight.to(torch.bfloat16) for name, weight in weights.items()}
    save_file(stored, out / "model.safetensors", metadata={"format": "pt"})
    return out
