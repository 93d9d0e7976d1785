"""Measure Kimi K3's format on the real vocabulary: random walks, step cost against Kimi K2, vLLM's own tag.

walks: turns over all tools of public MCP servers, read by our parser: valid, every required key, no key twice, every
index as due, their keys in random orders. steps: mask and token, and first masks, of the same calls in both formats.
tag: vLLM's tag kimi_k3 and our masks on the Kimi Vendor Verifier's schemas. Needs scripts/fetch_data.py, and tag needs
vLLM. Exit code 1 if a promise is broken.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.arguments import add_shared
from benchmarks.host.workload import load
from benchmarks.kimi_k3 import steps, walks
from benchmarks.kimi_k3.vocabulary import with_k3_tokens
from benchmarks.schemas.corpora import TOOLS, WALLE
from benchmarks.schemas.corpora import tools as tool_cases
from benchmarks.schemas.corpora import walle as walle_cases
from constrained_k2.vocabulary.vocabulary import Vocabulary


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one part and print its table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kimi_k3",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", choices=("walks", "steps", "tag"))
    add_shared(parser)
    parser.add_argument("--walks", type=int, default=10_000, help="turns of the part walks (default: %(default)s)")
    parser.add_argument("--orders", type=int, default=4, help="random orders of ordinary arguments, a tool")
    parser.add_argument("--turns", type=int, default=64, help="turns of the part steps (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=30, help="first masks of the part steps (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="walks a schema of the part tag (default: %(default)s)")
    parser.add_argument("--corpus", choices=("verifier", "tools"), default="verifier", help="schemas of the part tag")
    parser.add_argument("--every", type=int, default=1, help="only each n-th schema of the part tag")
    options = parser.parse_args(arguments)
    tokenizer = options.shared / "kimi_k2" / "tokenizer"
    for path in (tokenizer, options.shared / TOOLS, options.shared / WALLE):
        if not path.exists():
            parser.error(f"no {path}: run python -m scripts.fetch_data, or name the data's folder with --shared")
    measure = {"walks": _walks, "steps": _steps, "tag": _tag}[options.part]
    return int(not measure(options, tokenizer))


def _walks(options: argparse.Namespace, tokenizer: Path) -> bool:
    vocabulary = with_k3_tokens(Vocabulary.from_pretrained(tokenizer))
    lines = (options.shared / TOOLS).read_text("utf-8").splitlines()
    tools = [tool for line in lines for tool in json.loads(line)["tools"]]
    found = walks.run(tools, vocabulary, options.walks, partial(print, flush=True))
    written, faults = walks.shuffles_of_instances(tools, vocabulary, options.orders)
    return walks.table(found, written, faults, print)


def _steps(options: argparse.Namespace, _tokenizer: Path) -> bool:
    with tempfile.TemporaryDirectory() as scratch:
        workload = load(options.shared, Path(scratch))
    k3 = with_k3_tokens(workload.vocabulary)
    found = steps.measure(workload, k3, (64, options.turns, options.repeats), partial(print, flush=True))
    return steps.table(found, print)


def _tag(options: argparse.Namespace, tokenizer: Path) -> bool:
    from benchmarks.kimi_k3 import tag

    vocabulary = with_k3_tokens(Vocabulary.from_pretrained(tokenizer))
    read = (tool_cases, TOOLS) if options.corpus == "tools" else (walle_cases, WALLE)
    cases = list(read[0](options.shared / read[1]))[:: options.every]
    found, offered = tag.compare(cases, vocabulary, options.seeds, partial(print, flush=True))
    return tag.table(found, offered, print)


if __name__ == "__main__":
    sys.exit(main())
