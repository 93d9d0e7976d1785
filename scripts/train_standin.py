"""Train the stand-in that the demo serves, and write what ships of it (some minutes on one core).

.venv/bin/python scripts/train_standin.py [--steps 1400] [--threads 2] [--out DIR]
"""

import argparse
from pathlib import Path

import torch

from constrained_k2.evaluation.standin.build import TRAINED
from constrained_k2.evaluation.standin.training import Recipe, train_and_write

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=Recipe().steps)
    parser.add_argument("--seed", type=int, default=Recipe().seed)
    parser.add_argument("--threads", type=int, default=1, help="more than one helps only on idle cores")
    parser.add_argument("--out", type=Path, default=TRAINED)
    parser.add_argument("--copies", type=Path, help="a directory for weights from on the way")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    recipe = Recipe(steps=options.steps, seed=options.seed)
    train_and_write(options.out, recipe, say=lambda line: print(line, flush=True), copies=options.copies)
