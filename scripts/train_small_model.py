"""Train the small model and write its files (about 18 minutes on one core, for Kimi K3 about 26).

With --requests: only draw the held-out requests.
"""

import argparse
import json
import lzma
from functools import partial

import torch

from scripts.small_model.dialogs import drawn_samples
from scripts.small_model.shipped import FILES, HELD_OUT, SMALL_MODELS
from scripts.small_model.training import RECIPES, train_and_write


def main() -> None:
    """Train, or draw requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wire-format", choices=tuple(RECIPES), default="kimi_k2", help="(default: %(default)s)")
    parser.add_argument("--requests", type=int, metavar="N", help="draw N held-out requests, and train nothing")
    options = parser.parse_args()
    if options.requests:
        samples = drawn_samples(options.requests)
        lines = [f"{json.dumps(sample, ensure_ascii=False, separators=(',', ':'))}\n" for sample in samples]
        HELD_OUT.write_bytes(lzma.compress("".join(lines).encode(), preset=9))
        return
    torch.set_num_threads(1)  # more than one helps only on idle cores
    out = SMALL_MODELS[options.wire_format].checkpoint
    train_and_write(out, RECIPES[options.wire_format], partial(print, flush=True), options.wire_format)
    for path in out.iterdir():
        if path.name not in {*FILES, "training.jsonl"}:  # the tokenizer's files are those of the package
            path.unlink()


if __name__ == "__main__":
    main()
