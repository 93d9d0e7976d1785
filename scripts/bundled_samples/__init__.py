"""Draws the samples that ship with the package: ``python -m scripts.bundled_samples`` writes them."""

from collections.abc import Iterator
from typing import Any

from scripts.bundled_samples.adversarial import adversarial_bodies
from scripts.bundled_samples.ordinary import ordinary_samples


def drawn_bodies(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Two ordinary requests, then an adversarial one, and so on. No expected calls are known."""
    ordinary = ({**sample.body, "category": f"ordinary, {sample.choice}"} for sample in ordinary_samples(count, seed))
    adversarial = adversarial_bodies(count, seed)
    for number in range(count):
        yield next(adversarial if number % 3 == 2 else ordinary)
