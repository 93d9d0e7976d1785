"""Train the small model and write its files into the package (about 18 minutes on one core, for Kimi K3 about 26).

With --requests: only draw the held-out requests.
"""

import argparse
import json
import lzma
from dataclasses import replace
from pathlib import Path

import torch

from scripts.small_model.dialogs import drawn_samples
from scripts.small_model.serving import ship
from scripts.small_model.shipped import HELD_OUT
from scripts.small_model.training import RECIPES, Recipe, train_and_write
from scripts.small_model.wire_formats import SURFACES


def main() -> None:
    """Train, or draw requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wire-format", choices=tuple(SURFACES), default="kimi_k2", help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=Recipe().steps, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=Recipe().seed, help="(default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="more than one helps only on idle cores")
    parser.add_argument("--out", type=Path, help="(default: beside the scripts, and the package)")
    parser.add_argument("--copies", type=Path, help="directory for checkpoints")
    parser.add_argument("--requests", type=int, metavar="N", help="draw N held-out requests, and train nothing")
    options = parser.parse_args()
    if options.requests:
        samples = drawn_samples(options.requests)
        lines = [f"{json.dumps(sample, ensure_ascii=False, separators=(',', ':'))}\n" for sample in samples]
        HELD_OUT.write_bytes(lzma.compress("".join(lines).encode(), preset=9))
        return
    torch.set_num_threads(options.threads)
    surface = SURFACES[options.wire_format]
    recipe = replace(RECIPES[options.wire_format], steps=options.steps, seed=options.seed)
    out = options.out or surface.trained

    def say(line: str) -> None:
        print(line, flush=True)

    train_and_write(out, recipe, say, options.copies, options.wire_format)
    if options.out is None:
        ship(out, surface.shipped.checkpoint, options.wire_format)


if __name__ == "__main__":
    main()
