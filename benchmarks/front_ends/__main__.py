"""Compare vLLM's front ends with this package and with xgrammar's structural tag alone (about 15 minutes).

Serves the small model behind vLLM's Rust front end (`python -m scripts.fetch_data --only rust_front_end`) and behind
vLLM's Python with its `kimi_k2` parser, always with `--tool-strict-level parameter`, and judges the token ids of the
answers to its held-out requests at temperature 0.7, each seeded by its number.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.front_ends.raw import Judged, judge_raw
from benchmarks.report import line, table
from benchmarks.servers.harness import answers
from constrained_k2 import Vocabulary
from constrained_k2.evaluation.ab.serving import TEMPERATURE
from constrained_k2.evaluation.sample import Sample
from constrained_k2.evaluation.server import (
    ADOPTED_FLAGS,
    CONSTRAINED_FLAGS,
    STRICT_FLAGS,
    WITHOUT_PLUGIN,
    VllmServer,
    rust_front_end,
    with_settings,
)
from scripts.fetch_data import data_path
from scripts.rust_server import RUST_FRONT_END
from scripts.small_model.shipped import build_small_model, held_out_samples

_PROCESSOR = CONSTRAINED_FLAGS[-2:]
_COLUMNS = (
    "front end", "constraint", "answers", "calls", "undeclared", "invalid arguments", "wrong index",
    "special tokens in strings", "cut",
)  # fmt: skip


class FrontEnd(NamedTuple):
    """A server of the comparison."""

    name: str
    constraint: str
    flags: Sequence[str]
    environment: Mapping[str, str]


def front_ends(rust: Mapping[str, str]) -> list[FrontEnd]:
    """All servers; ``rust`` is the environment of those behind the Rust front end."""
    return [
        front_end
        for name, environment in {"Rust": rust, "Python": {}}.items()
        for front_end in (
            FrontEnd(name, "structured_output", ADOPTED_FLAGS, environment),
            FrontEnd(name, "logits_processor", (*STRICT_FLAGS, *_PROCESSOR), environment),
            FrontEnd(name, "xgrammar's tag alone", STRICT_FLAGS, {**environment, **WITHOUT_PLUGIN}),
        )
    ]


def main() -> int:
    """Print a table with one row per server; return 1 if this package let a wrong call through."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.front_ends", description=__doc__)
    parser.add_argument("--requests", type=int, default=300, help="per server (default: %(default)s)")
    options = parser.parse_args()
    binary = data_path(RUST_FRONT_END)
    if not binary.is_file():
        parser.error(f"no {binary}: run python -m scripts.fetch_data --only rust_front_end")
    samples = list(held_out_samples(options.requests))
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        model = build_small_model(Path(folder) / "model")
        print(table(_COLUMNS, ()), flush=True)
        for number, front_end in enumerate(front_ends(rust_front_end(binary))):
            judged, problems = serve_and_ask(front_end, model, samples, Path(folder) / f"{number}.log")
            print(line([front_end.name, front_end.constraint, *judged]), flush=True)
            if front_end.constraint in {"structured_output", "logits_processor"}:
                wrong += (f"{front_end.name} {front_end.constraint}: {problem}" for problem in problems)
    print(*wrong, sep="\n")
    return int(bool(wrong))


def serve_and_ask(front_end: FrontEnd, model: Path, samples: Sequence[Sample], log: Path) -> tuple[Judged, list[str]]:
    """Start the server and send it the requests; return the counts and the problems.

    Raises:
        RuntimeError: A request was not answered, or the server returns no token ids.
    """
    flags, vocabulary = front_end.flags, Vocabulary.from_pretrained(model)
    if WITHOUT_PLUGIN.items() - front_end.environment.items():  # a random model means none of its calls
        flags = with_settings(flags, undeclared_calls="nearest")
    common = {"model": "kimi-k2", "return_token_ids": True, "temperature": TEMPERATURE}
    bodies = [sample.body | common | {"seed": sample.number} for sample in samples]
    with VllmServer(model, flags, log=log, environment=front_end.environment) as server:
        found = answers(server.url, bodies)
    counts, problems = Judged(), list[str]()
    for sample, (status, answer) in zip(samples, found, strict=True):
        if status != 200 or answer["choices"][0].get("token_ids") is None:
            raise RuntimeError(f"request {sample.number}: HTTP {status}, without token ids: {str(answer)[:200]}")
        choice = answer["choices"][0]
        cut = choice["finish_reason"] == "length"
        judged, wrong = judge_raw(sample, choice["token_ids"], vocabulary, cut=cut)
        counts += judged
        problems += (f"request {sample.number}: {problem}" for problem in wrong)
    return counts, problems


if __name__ == "__main__":
    sys.exit(main())
