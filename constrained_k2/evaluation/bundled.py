"""Reads the samples that ship with the package: compressed lines of JSON."""

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from constrained_k2.errors import InvalidRequest

# Ordinary requests, every third one adversarial, without expected calls. Written by ``scripts/bundled_samples``.
BUNDLED = Path(__file__).parent / "bundled.jsonl.xz"


def bundled_bodies(path: Path, count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Some request bodies of a file, for ``read_sample``: the first ones for seed 0, else chosen by the seed."""
    lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    if count > len(lines):
        raise InvalidRequest(f"{count} samples, but only {len(lines)} are bundled", remedy="Ask for fewer")
    yield from map(json.loads, Random(seed).sample(lines, count) if seed else lines[:count])  # noqa: S311 - no secret
