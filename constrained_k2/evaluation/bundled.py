"""The data that ships with the package: samples as compressed lines of JSON, and the demo model."""

import json
import lzma
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from constrained_k2.errors import InvalidRequest
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.formats.kimi_k3 import KIMI_K3

if TYPE_CHECKING:
    from constrained_k2.testing.tokenizer import WireFormatName

# Ordinary requests, every third one adversarial, without expected calls. Written by ``scripts/bundled_samples``.
BUNDLED = Path(__file__).parent / "bundled.jsonl.xz"
# The demo model's held-out requests with their expected calls. Written by ``scripts/train_demo_model.py --requests``:
# values, pairs of tools in one request and sets of optional arguments are held out from training; the tools are not.
HELD_OUT = Path(__file__).parent / "demo" / "requests.jsonl.xz"
_DEMO = HELD_OUT.parent
SHIPPED_FILES = ("config.json", "generation_config.json", "model.safetensors", "tiktoken.model")


class DemoModel(NamedTuple):
    """The demo model for one wire format. Written by ``scripts/train_demo_model.py``."""

    wire_format: WireFormat
    checkpoint: Path  # config, bfloat16 weights and vocabulary
    fields: Mapping[str, Any] = {}  # of every request to it


DEMO_MODELS: "Mapping[WireFormatName, DemoModel]" = {
    "kimi_k2": DemoModel(KIMI_K2, _DEMO / "checkpoint"),
    "kimi_k3": DemoModel(KIMI_K3, _DEMO / "checkpoint_kimi_k3", {"chat_template_kwargs": {"thinking": False}}),
}


def bundled_bodies(path: Path, count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Some request bodies of a file, for ``read_sample``: the first ones for seed 0, else chosen by the seed."""
    lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    if count > len(lines):
        raise InvalidRequest(f"{count} samples, but only {len(lines)} are bundled", remedy="Ask for fewer")
    yield from map(json.loads, Random(seed).sample(lines, count) if seed else lines[:count])  # noqa: S311 - no secret


def build_demo_model(out: Path, wire_format: "WireFormatName" = "kimi_k2") -> Path:
    """Write the shipped files and the tokenizer into a directory, which is created if missing."""
    from constrained_k2.testing.tokenization_kimi import read_ranks
    from constrained_k2.testing.tokenizer import write_tokenizer

    shipped = DEMO_MODELS[wire_format].checkpoint
    out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(out, ranks=read_ranks(shipped / "tiktoken.model"), wire_format=wire_format)
    for name in SHIPPED_FILES:
        shutil.copyfile(shipped / name, out / name)
    return out
