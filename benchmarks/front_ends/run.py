"""Serves the demo model behind each front end, and sends it the demo's requests."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.front_ends.raw import Judged, judge_raw
from constrained_k2 import Vocabulary
from constrained_k2.evaluation.client import Client
from constrained_k2.evaluation.demo.comparison import TEMPERATURE
from constrained_k2.evaluation.sample import Sample
from constrained_k2.evaluation.server import (
    ADOPTED_FLAGS,
    CONSTRAINED_FLAGS,
    STRICT_FLAGS,
    WITHOUT_PLUGIN,
    VllmServer,
    with_settings,
)

_AT_ONCE = 8
_PROCESSOR = CONSTRAINED_FLAGS[-2:]


class FrontEnd(NamedTuple):
    """A server of the comparison."""

    name: str
    constraint: str
    flags: Sequence[str]
    environment: Mapping[str, str]

    @property
    def file(self) -> str:
        """The name of its log."""
        return "".join(one if one.isalnum() else "_" for one in f"{self.name} {self.constraint}".lower())


def front_ends(rust: Mapping[str, str] | None) -> list[FrontEnd]:
    """All servers; ``rust`` is the environment of those behind the Rust front end; None leaves them out."""
    found = []
    for name, environment in {"Rust": rust, "Python": {}}.items():
        if environment is not None:
            found += [
                FrontEnd(name, "structured_output", ADOPTED_FLAGS, environment),
                FrontEnd(name, "logits_processor", (*STRICT_FLAGS, *_PROCESSOR), environment),
                FrontEnd(name, "xgrammar's tag alone", STRICT_FLAGS, {**environment, **WITHOUT_PLUGIN}),
            ]
    return found


async def ask(url: str, samples: Sequence[Sample], vocabulary: Vocabulary) -> tuple[Judged, list[str]]:
    """Send all requests, each seeded by its number; return the counts and the problems.

    Raises:
        NoAnswer: A request was not answered.
        RuntimeError: The server returns no token ids.
    """
    limit = asyncio.Semaphore(_AT_ONCE)
    async with Client(url) as client:
        (model, *_) = await client.models()

        async def one(sample: Sample) -> tuple[Judged, list[str]]:
            more: dict[str, Any] = {"model": model, "return_token_ids": True}
            async with limit:
                (answer, *_) = await client.chat(
                    sample.body | more | {"temperature": TEMPERATURE, "seed": sample.number}
                )
            if answer.token_ids is None:
                raise RuntimeError("the server returns no token ids")
            cut = answer.finish_reason == "length"
            counts, problems = judge_raw(sample, answer.token_ids, vocabulary, cut=cut)
            return counts, [f"request {sample.number}: {problem}" for problem in problems]

        judged = await asyncio.gather(*map(one, samples))
    counts = Judged()
    for each, _ in judged:
        counts += each
    return counts, [problem for _, problems in judged for problem in problems]


def serve_and_ask(front_end: FrontEnd, model: Path, samples: Sequence[Sample], logs: Path) -> tuple[Judged, list[str]]:
    """Start the server and send it the requests: see :func:`ask`."""
    log, flags = logs / f"{front_end.file}.log", front_end.flags
    if WITHOUT_PLUGIN.items() - front_end.environment.items():  # a random model means none of its calls
        flags = with_settings(flags, undeclared_calls="nearest")
    with VllmServer(model, flags, log=log, environment=front_end.environment) as server:
        return asyncio.run(ask(server.url, samples, Vocabulary.from_pretrained(model)))
