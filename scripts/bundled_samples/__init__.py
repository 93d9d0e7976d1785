"""Draws the samples that ship with the package: ``python -m scripts.bundled_samples`` writes them."""
