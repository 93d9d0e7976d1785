"""``constrained-k2 demo``: the same requests to one real vLLM server, unconstrained and constrained, side by side."""

import argparse
from pathlib import Path
from typing import Any


def add_parser(verbs: Any) -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "demo",
        help="a tiny random Kimi-K2-shaped model on a real vLLM server, with and without constraints",
        description="Build a tiny random model, serve it with vLLM on loopback, send the same requests unconstrained "
        "and constrained, and print what came back. Writes every transcript.",
        epilog="example: constrained-k2 demo --requests 60 --arch llama",
    )
    parser.add_argument("--requests", type=_positive, default=120, help="requests an arm (default: %(default)s)")
    parser.add_argument("--arch", choices=("kimi_k2", "llama"), default="kimi_k2", help="shape of the model")
    parser.add_argument("--tokenizer", type=Path, help="a Kimi tokenizer directory; by default a small vocabulary")
    parser.add_argument(
        "--output", type=Path, default=Path("demo_output"), help="where the model, the log and transcripts go"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the model's weights and the samples")
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def run(options: argparse.Namespace) -> int:
    """Run the demo; 1 if a constrained answer was not right."""
    import asyncio
    import time

    from rich.console import Console

    from constrained_k2.evaluation import side_by_side
    from constrained_k2.evaluation.samples import built_in_samples
    from constrained_k2.evaluation.scores import score, total
    from constrained_k2.evaluation.server import VllmServer
    from constrained_k2.fixtures import build_model
    from constrained_k2.vocabulary import Vocabulary

    if options.tokenizer is not None:
        Vocabulary.from_pretrained(options.tokenizer)  # says what is wrong with it before anything is built
    console = Console()
    options.output.mkdir(parents=True, exist_ok=True)
    model = build_model(options.output / "model", arch=options.arch, tokenizer=options.tokenizer, seed=options.seed)
    samples = list(built_in_samples(options.requests, options.seed))
    log = options.output / "server.log"
    console.print(f"Starting vLLM with a random {options.arch} model (log: {log}) …")
    start = time.monotonic()
    with VllmServer(model, log=log) as server:
        console.print(f"Up after {time.monotonic() - start:.0f} s. {len(samples)} requests an arm, temperature 1.")
        answers = asyncio.run(side_by_side.ask_arms(server.url, samples, console))
    scores = {arm: total(map(score, samples, found)) for arm, found in answers.items()}
    side_by_side.show_transcript(console, samples, answers)
    console.print(side_by_side.score_table(scores))
    side_by_side.write_transcripts(options.output / "transcripts.jsonl", samples, answers)
    console.print(f"Every request and answer: {options.output / 'transcripts.jsonl'}")
    constrained = scores["constrained"]
    for problem in constrained.problems:
        console.print(f"[red]{problem}", highlight=False)
    return int(bool(constrained.problems) or constrained.served < constrained.due or not constrained.calls)
