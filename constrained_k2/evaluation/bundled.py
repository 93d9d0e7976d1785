"""The data that ships with the package: samples as compressed lines of JSON, and the demo model."""

import json
import lzma
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from constrained_k2.errors import InvalidRequest

# Ordinary requests, every third one adversarial, without expected calls. Written by ``scripts/bundled_samples``.
BUNDLED = Path(__file__).parent / "bundled.jsonl.xz"
# The demo model's held-out requests with their expected calls. Written by ``scripts/train_demo_model.py --requests``:
# values, pairs of tools in one request and sets of optional arguments are held out from training; the tools are not.
HELD_OUT = Path(__file__).parent / "demo" / "requests.jsonl.xz"
# The demo model: config, bfloat16 weights and vocabulary. Written by ``scripts/train_demo_model.py``.
SHIPPED = Path(__file__).parent / "demo" / "checkpoint"
SHIPPED_FILES = ("config.json", "generation_config.json", "model.safetensors", "tiktoken.model")


def bundled_bodies(path: Path, count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Some request bodies of a file, for ``read_sample``: the first ones for seed 0, else chosen by the seed."""
    lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    if count > len(lines):
        raise InvalidRequest(f"{count} samples, but only {len(lines)} are bundled", remedy="Ask for fewer")
    yield from map(json.loads, Random(seed).sample(lines, count) if seed else lines[:count])  # noqa: S311 - no secret


def build_demo_model(out: Path) -> Path:
    """Write the shipped files, the tokenizer and the chat template into a directory, which is created if missing."""
    from constrained_k2.testing.tokenization_kimi import read_ranks
    from constrained_k2.testing.tokenizer import write_tokenizer

    out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(out, ranks=read_ranks(SHIPPED / "tiktoken.model"))
    for name in SHIPPED_FILES:
        shutil.copyfile(SHIPPED / name, out / name)
    return out
