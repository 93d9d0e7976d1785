"""Teach SmolLM2-135M-Instruct Kimi K2's wire format on right dialogs, then an EAGLE-3 head to draft for it.

    python -m scripts.train_smollm2           # the adapter: a few hours on two cores
    python -m scripts.train_smollm2 --head    # the head, for the shipped adapter

The same command resumes an interrupted training. The result is written into build/smollm2; --ship copies it beside the
scripts.
"""

import argparse
import shutil
import tempfile
from functools import partial
from pathlib import Path

import torch

from constrained_k2.vocabulary.vocabulary import Vocabulary
from scripts.smollm2.adapter import Adapted, load_adapter, merged_model
from scripts.smollm2.base import open_gguf, read_base
from scripts.smollm2.checkpoint import ADAPTER, HEAD
from scripts.smollm2.eagle import Head, loss_of
from scripts.smollm2.questions import questions
from scripts.smollm2.tokenizer import write_tokenizer
from scripts.smollm2.training import HEAD_RECIPE, Recipe, Written, train


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head", action="store_true", help="the EAGLE-3 head instead of the adapter")
    parser.add_argument("--ship", action="store_true", help="copy the result and its log beside the scripts at the end")
    options = parser.parse_args()
    torch.set_num_threads(2)
    recipe, shipped = (HEAD_RECIPE, HEAD) if options.head else (Recipe(), ADAPTER)
    gguf = open_gguf()
    with tempfile.TemporaryDirectory() as tokenizer:
        write_tokenizer(Path(tokenizer), gguf)
        written = Written(questions(), Vocabulary.from_pretrained(tokenizer), recipe)
    base, say, out = read_base(gguf), partial(print, flush=True), Path("build/smollm2") / shipped.name
    if options.head:
        model, head = merged_model(base, load_adapter(ADAPTER)), Head(base.config, recipe.seed)
        train(head.trained(), partial(loss_of, model, head), written, recipe, out, say)
    else:
        adapted = Adapted(base, recipe.seed)
        train(adapted.trained(), adapted.loss_of, written, recipe, out, say)
    if options.ship:
        for suffix in (".safetensors", ".jsonl"):
            shutil.copyfile(out.with_suffix(suffix), shipped.with_suffix(suffix))


if __name__ == "__main__":
    main()
