"""Teach SmolLM2-135M-Instruct Kimi K2's wire format on right dialogs; an interrupted training goes on where it was.

python -m scripts.train_smollm2                    # a few hours on two cores; writes build/smollm2
python -m scripts.train_smollm2 --checkpoint DIR   # no training: write the checkpoint that vLLM serves
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import torch

from constrained_k2.vocabulary.vocabulary import Vocabulary
from scripts.smollm2.adapter import Adapted
from scripts.smollm2.base import gguf_file, read_base
from scripts.smollm2.checkpoint import ADAPTER, write_checkpoint
from scripts.smollm2.questions import questions
from scripts.smollm2.tokenizer import write_tokenizer
from scripts.smollm2.training import Recipe, Written, train


def main() -> None:
    """Train, or write the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=Recipe().steps, help="(default: %(default)s)")
    parser.add_argument(
        "--threads", type=int, default=2, help="no more than there are idle cores (default: %(default)s)"
    )
    parser.add_argument("--folder", type=Path, default=Path("build/smollm2"), help="(default: %(default)s)")
    parser.add_argument(
        "--ship", action="store_true", help="copy the adapter and the log beside the scripts at the end"
    )
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="write the checkpoint with the shipped adapter")
    options = parser.parse_args()
    if options.checkpoint:
        write_checkpoint(options.checkpoint)
        return
    torch.set_num_threads(options.threads)
    recipe = Recipe(steps=options.steps)
    gguf = gguf_file()
    with tempfile.TemporaryDirectory() as tokenizer:
        write_tokenizer(Path(tokenizer), gguf)
        written = Written(questions().learnt, Vocabulary.from_pretrained(tokenizer), recipe)
    train(Adapted(read_base(gguf), recipe.seed), written, recipe, options.folder)
    if options.ship:
        for name in (ADAPTER.name, "training.jsonl"):
            shutil.copyfile(options.folder / name, ADAPTER.with_name(name))


if __name__ == "__main__":
    main()
