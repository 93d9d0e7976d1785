"""Compare vLLM's front ends with this package and with xgrammar's structural tag alone (about 15 minutes).

Serves the demo model behind vLLM's Rust front end (`python -m scripts.fetch_data --only rust_front_end`) and behind
vLLM's Python with its `kimi_k2` parser, always with `--tool-strict-level parameter`, and judges the token ids of the
answers to the demo's held-out requests at temperature 0.7.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.front_ends.run import front_ends, serve_and_ask
from constrained_k2.evaluation.bundled import build_demo_model
from constrained_k2.evaluation.demo.comparison import demo_samples
from constrained_k2.evaluation.server import rust_front_end
from scripts.fetch_data import data_path
from scripts.rust_server import RUST_FRONT_END

_HEADER = (
    "| front end | constraint | answers | calls | undeclared | invalid arguments | wrong index "
    "| special tokens in strings | cut |\n|---|---|--:|--:|--:|--:|--:|--:|--:|"
)


def main() -> int:
    """Print a table with one row per server; return 1 if this package let a wrong call through."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.front_ends", description=__doc__)
    parser.add_argument("--requests", type=int, default=300, help="per server (default: %(default)s)")
    parser.add_argument("--only", default="", help="only rows that begin so, for example 'Rust structured'")
    parser.add_argument("--binary", type=Path, default=data_path(RUST_FRONT_END), help="vLLM's vllm-rs")
    parser.add_argument("--output", type=Path, help="keep the servers' logs here")
    options = parser.parse_args()
    if not options.binary.is_file() and not options.only.startswith("Python"):
        parser.error(f"no {options.binary}: run python -m scripts.fetch_data --only rust_front_end")
    rust = rust_front_end(options.binary) if options.binary.is_file() else None
    samples = list(demo_samples(options.requests))
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        model = build_demo_model(Path(folder) / "model")
        logs = options.output or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        print(_HEADER, flush=True)
        for front_end in front_ends(rust):
            if f"{front_end.name} {front_end.constraint}".startswith(options.only):
                judged, problems = serve_and_ask(front_end, model, samples, logs)
                print(
                    f"| {front_end.name} | {front_end.constraint} | {judged.answers} | {judged.calls} "
                    f"| {judged.undeclared} | {judged.invalid} | {judged.misnumbered} | {judged.in_strings} "
                    f"| {judged.cut} |",
                    flush=True,
                )
                (logs / f"{front_end.file}.problems").write_text("\n".join(problems), encoding="utf-8")
                if front_end.constraint in {"structured_output", "logits_processor"}:
                    wrong += len(problems)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
