"""Writes a tiny random model: `python -m constrained_k2.testing OUT`."""

import argparse
import math
import time
from pathlib import Path

from safetensors import safe_open

from constrained_k2.testing.model import build_model


def main() -> None:
    """Build a model and print one line: parameters, size on disk, seconds."""
    parser = argparse.ArgumentParser(
        prog="python -m constrained_k2.testing",
        description="Write a tiny random model with the tokenizer format of Kimi K2 or Kimi K3.",
        epilog="example: python -m constrained_k2.testing tiny-k2 --arch llama",
    )
    parser.add_argument("out", type=Path, help="directory to write")
    parser.add_argument("--arch", choices=("kimi_k2", "llama"), default="kimi_k2", help="(default: %(default)s)")
    choices = ("kimi_k2", "kimi_k3")
    parser.add_argument("--wire-format", choices=choices, default="kimi_k2", help="(default: %(default)s)")
    parser.add_argument("--tokenizer", type=Path, help="directory of the real vocabulary (default: a small one)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default: %(default)s)")
    arguments = parser.parse_args()

    start = time.perf_counter()
    out = build_model(
        arguments.out,
        arch=arguments.arch,
        tokenizer=arguments.tokenizer,
        seed=arguments.seed,
        wire_format=arguments.wire_format,
    )
    seconds = time.perf_counter() - start
    with safe_open(out / "model.safetensors", "pt") as tensors:
        parameters = sum(math.prod(tensors.get_slice(name).get_shape()) for name in list(tensors.keys()))
    size = sum(path.stat().st_size for path in out.iterdir() if path.is_file())
    print(f"{out}: {arguments.arch}, {parameters / 1e6:.1f} M parameters, {size / 2**20:.1f} MiB, {seconds:.1f} s")


if __name__ == "__main__":
    main()
