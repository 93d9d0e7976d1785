"""Draws the samples that ship with the package, and writes them."""

import json
import lzma
from collections.abc import Iterator
from typing import Any

from constrained_k2.evaluation.sample import BUNDLED
from scripts.bundled_samples.adversarial import adversarial_bodies
from scripts.bundled_samples.ordinary import ordinary_samples


def drawn_bodies(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Two ordinary requests, then an adversarial one, and so on. No expected calls are known."""
    ordinary = ({**sample.body, "category": f"ordinary, {sample.choice}"} for sample in ordinary_samples(count, seed))
    adversarial = adversarial_bodies(count, seed)
    for number in range(count):
        yield next(adversarial if number % 3 == 2 else ordinary)


if __name__ == "__main__":
    lines = "".join(json.dumps(body, ensure_ascii=False) + "\n" for body in drawn_bodies(3000))
    BUNDLED.write_bytes(lzma.compress(lines.encode(), preset=9 | lzma.PRESET_EXTREME))
