"""The command line, ``constrained-k2 VERB``: one module a verb."""

import argparse
import os
import sys
from collections.abc import Sequence

from constrained_k2 import __version__
from constrained_k2.cli import ab, bench, coverage, demo, doctor, grammar, parse, render
from constrained_k2.errors import ConstrainedK2Error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb.

    Returns:
        0: good; 1: something was found wrong; 2: bad use.
    """
    parser = argparse.ArgumentParser(prog="constrained-k2", description="Constrained tool calls for Kimi K2 on vLLM.")
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    for verb in (ab, bench, coverage, demo, doctor, grammar, parse, render):
        verb.add_parser(verbs)
    options = parser.parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except ConstrainedK2Error as error:
        print(f"constrained-k2: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever reads, head say, has enough; nothing more can be told there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as error:
        print(f"constrained-k2: {error.name} is missing: pip install 'constrained-k2[demo]'", file=sys.stderr)
        return 2
    return code
