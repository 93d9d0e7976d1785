"""Checks a running server of a Kimi model.

Sends requests to an OpenAI-compatible server of a Kimi model and reports, for each known fault, what was observed and
which flag or version to change: prompts, ids, special tokens in text, whether constraints bind, streams, calls that are
cut off. Takes about a minute; the model writes some thousands of tokens. Exit code 1 if there is a fault, 2 if the
server cannot be reached.

example: constrained-k2 doctor http://localhost:8000
"""

import argparse

from constrained_k2.errors import InvalidRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    add("url", metavar="URL", help="the server's address, with or without /v1")
    add("--model", help="the requested model (default: the server's first)")
    add("--api-key-env", metavar="NAME", default="", help="the environment variable with the API key")
    add("--json", action="store_true", help="print the findings as JSON")
    add("--quick", action="store_true", help="skip the checks that need whole answers")


def run(options: argparse.Namespace) -> int:
    """Examine the server; 1 if there is a fault."""
    import asyncio

    from rich.console import Console

    from constrained_k2.evaluation.answer import NoAnswer
    from constrained_k2.evaluation.client import Client, Refused, api_key_in
    from constrained_k2.evaluation.doctor import findings
    from constrained_k2.evaluation.doctor.examination import examine
    from constrained_k2.evaluation.doctor.target import Target, open_target

    key = api_key_in(options.api_key_env, "--api-key-env")

    async def examined() -> tuple[Target, list[findings.Result]]:
        async with Client(options.url, key) as client:
            try:
                target = await open_target(client, options.model)
            except NoAnswer as error:
                problem, remedy = str(error), "Give an OpenAI-compatible server's address"
                if isinstance(error, Refused):
                    problem, remedy = f"refused: {error}", "Name the API key with --api-key-env"
                raise InvalidRequest(problem, client.url, remedy) from None
            return target, [result async for result in examine(target, quick=options.quick)]

    target, results = asyncio.run(examined())
    if options.json:
        print(findings.to_json(target.client.url, target.model, results))
    else:
        findings.show(Console(highlight=False), results)
    return int(findings.counts(results)["fault"] > 0)
