"""The trained part of the model: low-rank changes of its layers (LoRA), and embeddings of Kimi's special tokens."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from scripts.smollm2.base import Base
from scripts.smollm2.tokenizer import NAMES

RANK = 12
_SCALE = 2.0
_FIRST, _COUNT = min(NAMES), len(NAMES)  # the special tokens' ids are a range


class LowRank(nn.Module):  # type: ignore[misc] # torch has no types here
    """A frozen linear layer with a trained change: ``weight + 2 * up @ down``."""

    def __init__(self, weight: Tensor, generator: torch.Generator) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.register_buffer("weight", weight)
        self.down = nn.Parameter(torch.randn(RANK, columns, generator=generator) / math.sqrt(columns))
        self.up = nn.Parameter(torch.zeros(rows, RANK))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``[..., columns]`` to ``[..., rows]``."""
        change = functional.linear(functional.linear(inputs, self.down), self.up)
        return functional.linear(inputs, self.weight) + _SCALE * change


class Marked(nn.Module):  # type: ignore[misc]
    """A frozen embedding, also the head, with trained rows for the special tokens."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.rows = nn.Parameter(weight[_FIRST : _FIRST + _COUNT].clone())

    def forward(self, ids: Tensor) -> Tensor:
        """Embed int64 ids."""
        offsets = ids - _FIRST
        special = (offsets >= 0) & (offsets < _COUNT)
        trained = functional.embedding(offsets.clamp(0, _COUNT - 1), self.rows)
        return torch.where(special[..., None], trained, functional.embedding(ids, self.weight))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return ``[..., vocab_size]`` logits for hidden states."""
        found = functional.linear(hidden, self.weight)
        trained = functional.linear(hidden, self.rows)
        return torch.cat((found[..., :_FIRST], trained, found[..., _FIRST + _COUNT :]), dim=-1)


class Adapted(nn.Module):  # type: ignore[misc]
    """The base model with the trained part, in float32."""

    def __init__(self, base: Base, seed: int = 0) -> None:
        super().__init__()
        model = LlamaForCausalLM(LlamaConfig(**base.config)).model
        model.load_state_dict({name.removeprefix("model."): weight for name, weight in base.weights.items()})
        model.requires_grad_(requires_grad=False)
        generator = torch.Generator().manual_seed(seed)
        for layer in model.layers:
            for part in (layer.self_attn, layer.mlp):
                for name, linear in list(part.named_children()):
                    if isinstance(linear, nn.Linear):
                        setattr(part, name, LowRank(linear.weight.detach(), generator))
        self.embedding = Marked(model.embed_tokens.weight.detach())
        model.embed_tokens = nn.Identity()  # ``forward`` gives embeddings
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Return the last hidden states, ``[batch, length, hidden]``, of int64 ids ``[batch, length]``."""
        hidden: Tensor = self.model(inputs_embeds=self.embedding(ids), use_cache=False).last_hidden_state
        return hidden

    def loss_of(self, ids: Sequence[int], written: Sequence[bool]) -> Tensor:
        """Return the sum of the cross-entropies of the tokens that the assistant writes, in nats."""
        flags = torch.tensor(written[1:])
        hidden = self(torch.tensor([ids[:-1]]))[0][flags]
        return functional.cross_entropy(self.embedding.logits(hidden), torch.tensor(ids[1:])[flags], reduction="sum")

    def trained(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained, by their names in the adapter's file."""
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}


def save_adapter(path: Path, trained: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write the parameters: matrices as int8 with a float16 scale a row, vectors as float16."""
    written = {}
    for name, weight in trained.items():
        values = weight.detach().float()
        if values.ndim == 1:
            written[name] = values.half()
            continue
        scale = (values.abs().amax(dim=1, keepdim=True) / 127).clamp_min(2**-24).half()
        written[name] = (values / scale.float()).round().clamp(-127, 127).to(torch.int8)
        written[f"{name}.scale"] = scale
    save_file(written, path, metadata=dict(metadata))


def load_adapter(path: Path) -> dict[str, Tensor]:
    """Read :func:`save_adapter`'s file into float32."""
    found = load_file(path)
    scales = {name: scale.float() for name, scale in found.items() if name.endswith(".scale")}
    return {
        name: values.float() * scales.get(f"{name}.scale", 1.0) for name, values in found.items() if name not in scales
    }


def merged_model(base: Base, trained: Mapping[str, Tensor]) -> LlamaForCausalLM:
    """Return the model with the trained part added, frozen, in float32."""
    model = LlamaForCausalLM(LlamaConfig(**base.config))
    model.load_state_dict(dict(merged(base, trained)), strict=False)
    model.tie_weights()
    return model.requires_grad_(requires_grad=False)


def merged(base: Base, trained: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of the checkpoint, by transformers' names, with the trained part added."""
    for name, weight in base.weights.items():
        module = name.removesuffix(".weight")
        if (down := trained.get(f"{module}.down")) is not None:
            yield name, weight + _SCALE * trained[f"{module}.up"] @ down
        elif name == "model.embed_tokens.weight":
            changed = weight.clone()
            changed[_FIRST : _FIRST + _COUNT] = trained["embedding.rows"]
            yield name, changed
        else:
            yield name, weight
