"""The command line ``constrained-k2 VERB``: one module per verb, whose docstring is the verb's help."""

import argparse
import io
import os
import sys
from collections.abc import Sequence

from constrained_k2 import __version__
from constrained_k2.cli import ab, coverage, demo, doctor, explain, grammar, parse, render
from constrained_k2.errors import ConstrainedK2Error, missing_dependency


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; return 0 for good, 1 if something wrong was found, 2 for bad use, 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(prog="constrained-k2", description="Constrained tool calls for Kimi K2 on vLLM.")
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    for verb in (ab, coverage, demo, doctor, explain, grammar, parse, render):
        text, as_written = verb.__doc__ or "", argparse.RawDescriptionHelpFormatter
        name, summary = verb.__name__.rpartition(".")[2], text.partition("\n")[0]
        added = verbs.add_parser(name, help=summary, description=text, formatter_class=as_written)
        added.set_defaults(run=verb.run)
        verb.add_arguments(added)
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a model may write what the terminal's encoding, or any, lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except (ConstrainedK2Error, ModuleNotFoundError) as error:
        message = missing_dependency(error) if isinstance(error, ModuleNotFoundError) else error
        print(f"constrained-k2: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("constrained-k2: interrupted", file=sys.stderr)
        return 130  # the shells' convention
    except BrokenPipeError:  # the reader of the output, such as head, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code
