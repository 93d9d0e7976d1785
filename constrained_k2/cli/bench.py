"""Measures the host cost of constraining, compared with xgrammar and LLGuidance, or a GPU (needs a clone).

Runs ``python -m benchmarks.host`` of the clone that the package is installed from, with ``--gpu`` ``benchmarks.gpu``.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path

from constrained_k2.errors import InvalidRequest

_GPU = "--gpu"
CLONE = Path(__file__).resolve().parents[2]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.prefix_chars = "\0"  # every option is passed on to the benchmark, --help included
    parser.add_argument("options", nargs="*")


def run(options: argparse.Namespace) -> int:
    """Run the benchmark; 1 if a promised figure is missed or a check fails."""
    if not (CLONE / "benchmarks" / "host" / "__main__.py").is_file():
        remedy = "Clone the repository, install it with pip install -e '.[test]' and run python -m benchmarks.host"
        raise InvalidRequest("the benchmarks are not part of the installed package", "bench", remedy)
    if str(CLONE) not in sys.path:
        sys.path.insert(0, str(CLONE))
    passed_on = [option for option in options.options if option != _GPU]
    name, prog = "host", "constrained-k2 bench"
    if _GPU in options.options:
        name, prog = "gpu", f"{prog} {_GPU}"
    code: int = import_module(f"benchmarks.{name}.__main__").main(passed_on, prog)
    return code
