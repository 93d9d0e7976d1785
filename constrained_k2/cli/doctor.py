"""``constrained-k2 doctor``: what is wrong with a running server, and what to change."""

import argparse
import os
from typing import TYPE_CHECKING, Any

from constrained_k2.errors import InvalidRequest

if TYPE_CHECKING:
    from constrained_k2.evaluation.doctor.finding import Result
    from constrained_k2.evaluation.doctor.target import Target


def add_parser(verbs: Any) -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "doctor",
        help="check a running server of a Kimi model",
        description="Sends requests to an OpenAI-compatible server of a Kimi model and tells, for each thing that is "
        "known to go wrong, what was seen and which flag or version to change: prompts, ids, special tokens in text, "
        "whether constraints bind, streams, calls that are cut off. Takes a minute or so; the model writes some "
        "thousands of tokens. Exit code 1 if there is a fault, 2 if the server cannot be reached.",
        epilog="example: constrained-k2 doctor http://localhost:8000",
    )
    parser.add_argument("url", metavar="URL", help="the server's address, with or without /v1")
    parser.add_argument("--model", help="the model to ask for (default: the server's first)")
    parser.add_argument("--api-key-env", metavar="NAME", help="the environment variable that holds the API key")
    parser.add_argument("--json", action="store_true", help="findings as JSON")
    parser.add_argument("--quick", action="store_true", help="only what needs no answers: prompts, flags, refusals")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Examine the server; 1 if there is a fault."""
    import asyncio

    from rich.console import Console

    from constrained_k2.evaluation.doctor import report

    key = None
    if options.api_key_env is not None:
        key = os.environ.get(options.api_key_env)
        if not key:
            raise InvalidRequest(f"no environment variable {options.api_key_env!r} is set", "--api-key-env")
    target, results = asyncio.run(_examine(options, key))
    if options.json:
        print(report.to_json(target.connection.url, target.model, results))
    else:
        report.show(Console(highlight=False), results)
    return int(report.counts(results)["fault"] > 0)


async def _examine(options: argparse.Namespace, key: str | None) -> "tuple[Target, list[Result]]":
    """All findings.

    Raises:
        InvalidRequest: The server cannot be reached, or does not answer as an OpenAI-compatible one.
    """
    from constrained_k2.evaluation.chat_answer import Unusable
    from constrained_k2.evaluation.doctor.connection import Connection, NotServed, Refused
    from constrained_k2.evaluation.doctor.examination import examine
    from constrained_k2.evaluation.doctor.target import open_target

    async with Connection(options.url, key) as connection:
        try:
            target = await open_target(connection, options.model)
        except Refused as refusal:
            raise InvalidRequest(f"refused: {refusal}", connection.url, "Is an API key due (--api-key-env)?") from None
        except (NotServed, Unusable) as error:
            raise InvalidRequest(
                f"{error}", connection.url, "Give the address of an OpenAI-compatible server"
            ) from None
        return target, [result async for result in examine(target, quick=options.quick)]
