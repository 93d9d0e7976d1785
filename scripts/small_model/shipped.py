"""The small trained model of tests and benchmarks, and its held-out requests, as files of the repository."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from constrained_k2.evaluation.sample import Sample, bundled_bodies, read_sample
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.testing.tokenization_kimi import read_ranks
from constrained_k2.testing.tokenizer import WireFormatName, write_tokenizer

_HERE = Path(__file__).parent
# The held-out requests with their expected calls. Written by ``scripts/train_small_model.py --requests``: values, pairs
# of tools in one request and sets of optional arguments are held out from training; the tools are not.
HELD_OUT = _HERE / "requests.jsonl.xz"
FILES = ("config.json", "generation_config.json", "model.safetensors", "tiktoken.model")
_MAX_TOKENS = 400  # the longest right answer has about 150, Kimi K3's 230


class SmallModel(NamedTuple):
    """The model for one wire format. Written by ``scripts/train_small_model.py``."""

    wire_format: WireFormat
    checkpoint: Path  # config, bfloat16 weights and vocabulary, and the log of their training
    phrasing: tuple[str, ...] = ()  # further texts whose words have a token with the space before them
    fields: Mapping[str, Any] = {}  # of every request to it


_ATTRIBUTES = " role tool index key type"  # of tags; single tokens in Kimi K3's vocabulary too
SMALL_MODELS: Mapping[WireFormatName, SmallModel] = {
    "kimi_k2": SmallModel(KIMI_K2, _HERE / "checkpoint"),
    "kimi_k3": SmallModel(
        KIMI_K3,
        _HERE / "checkpoint_kimi_k3",
        (_ATTRIBUTES,),
        {"chat_template_kwargs": {"thinking": False}},
    ),
}


def build_small_model(out: Path, wire_format: WireFormatName = "kimi_k2") -> Path:
    """Write the model and the tokenizer into a directory, which is created if missing."""
    shipped = SMALL_MODELS[wire_format].checkpoint
    out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(out, ranks=read_ranks(shipped / "tiktoken.model"), wire_format=wire_format)
    for name in FILES:
        shutil.copyfile(shipped / name, out / name)
    return out


def held_out_bodies(count: int, seed: int = 0, wire_format: WireFormatName = "kimi_k2") -> Iterator[dict[str, Any]]:
    """Held-out requests with their expected calls and the fields that the model needs.

    Raises ``InvalidRequest`` if ``count`` is more than there are.
    """
    added = {"max_tokens": _MAX_TOKENS, **SMALL_MODELS[wire_format].fields}
    return (body | added for body in bundled_bodies(HELD_OUT, count, seed))


def held_out_samples(count: int, seed: int = 0, wire_format: WireFormatName = "kimi_k2") -> Iterator[Sample]:
    """As :func:`held_out_bodies`, read."""
    return (read_sample(body, number) for number, body in enumerate(held_out_bodies(count, seed, wire_format), 1))
